// The GGUF container, versions 2 and 3, little-endian: metadata and the places of tensors. Knows nothing of models.
//
// Layout: "GGUF", u32 version, u64 tensors, u64 keys; the keys (string, u32 value type, value); the tensor list (string, u32 dimensions,
// u64 each, innermost first, u32 type, u64 offset); padding to the alignment; tensor data, offsets counted from here.
// A string is u64 bytes and the bytes; an array is u32 element type, u64 count and the elements.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersor/base.h"

namespace tersor::model::gguf {

enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr uint32_t kValueTypes = 13;

/// A metadata value where it lies in the file. `bytes`: a scalar's or the elements' encoding, or a string's text.
struct Value {
  ValueType type = ValueType::u8;
  ValueType element = ValueType::u8;  // of an array
  uint64_t count = 1;                 // of an array
  std::span<const std::byte> bytes;
};

struct Tensor {
  std::string_view name;
  std::vector<uint64_t> shape;  // outermost first, as MLX has it
  uint32_t type = 0;
  uint64_t offset = 0;              // in the file
  std::span<const std::byte> data;  // empty when the type is unknown
};

/// A file whose every length, count, offset and type has been checked. Values and names are views into the mapping.
class File {
 public:
  /// Throws Error naming the file, the place and what is wrong.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.bytes().size(); }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  const std::map<std::string_view, Value>& metadata() const { return metadata_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* tensor(std::string_view name) const;  // null when there is none

  /// Null when the key is missing.
  const Value* value(std::string_view key) const;
  /// Empty when the key is missing; Error when its value is of another kind. Any integer type will do for integer(), and for
  /// number() also f32 and f64. An array whose elements are all equal stands for that element.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  /// Elements of an array of strings or of integers, in order; Error when the value is something else. False when the key is missing.
  bool strings(std::string_view key, const std::function<void(uint64_t, std::string_view)>& f) const;
  bool integers(std::string_view key, const std::function<void(uint64_t, int64_t)>& f) const;
  /// The count of an array, or 0.
  uint64_t count(std::string_view key) const;

  /// Throws Error: "PATH: TEXT".
  [[noreturn]] void fail(const std::string& text) const;

 private:
  [[noreturn]] void fail_type(std::string_view key, const char* wanted, const Value& value) const;
  const Value& scalar(const Value& value, std::string_view key, Value& storage) const;

  MappedFile file_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::map<std::string_view, Value> metadata_;
  std::vector<Tensor> tensors_;  // as in the file
  std::map<std::string_view, size_t> by_name_;
};

/// "u32", "array of string"
std::string type_text(const Value& value);

}  // namespace tersor::model::gguf
