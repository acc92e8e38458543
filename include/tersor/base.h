// The lowest room: what every other room needs and nothing about models, codecs or MLX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tersor {

/// Bad input or an impossible request. what() is one line: what is wrong, where, and what to do about it.
/// The command line prints it and exits with status 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// IEEE binary16 and bfloat16 conversions, round to nearest even; NaN stays NaN, overflow becomes infinity.
uint16_t float_to_half(float value);
float half_to_float(uint16_t bits);
uint16_t float_to_bfloat(float value);
float bfloat_to_float(uint16_t bits);

/// Storage types of full-precision numbers.
enum class Dtype { f16, bf16, f32 };
constexpr size_t size_of(Dtype type) { return type == Dtype::f32 ? 4 : 2; }
std::string_view name_of(Dtype type);      // "f16", "bf16", "f32"
Dtype parse_dtype(std::string_view text);  // accepts f16|fp16|float16 and so on; throws Error

/// What the codes of quantised weights stand for. affine: scale * code + bias. mxfp4, mxfp8: the microscaling formats of the Open Compute
/// Project, groups of 32: scale * code, the code a small float (e2m1, e4m3), the scale a power of two in one byte (e8m0; 255 is NaN).
enum class Coding { affine, mxfp4, mxfp8 };
std::string_view name_of(Coding coding);

/// What a gated feed-forward applies to its gate. gelu: v times the normal distribution's Phi(v); gelu_tanh: its usual approximation.
enum class Activation { silu, gelu, gelu_tanh };
std::string_view name_of(Activation activation);

/// A whole file mapped read-only. Throws Error when it cannot be opened, is a directory, or is empty.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Reads a whole text file; throws Error when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Throws Error when no file can be created or replaced at the path: it is a folder, or its folder is missing or read-only.
void check_writable(const std::filesystem::path& path);

/// Writes a file so that readers see the old content or the new, never a part (temporary file + rename).
/// `write` receives the temporary's path. Throws Error when the place is not writable.
void write_atomically(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

/// "1.5 MiB"
std::string human_bytes(uint64_t bytes);

/// Bytes of physical memory this process may use: the smaller of the machine's and the cgroup's limit.
uint64_t memory_limit();
/// Resident set size of this process now and at its highest, in bytes (from /proc).
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

}  // namespace tersor
