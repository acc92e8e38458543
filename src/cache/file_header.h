// The metadata of a file of ours in the safetensors container, with errors that name what differs.
#pragma once

#include <map>
#include <span>
#include <string>

#include "base/safetensors.h"
#include "tersor/cache.h"

namespace tersor::cache {

class FileHeader {
 public:
  struct Kind {
    const char *format, *version;
    const char* otherwise;  // what to say of another file
  };
  /// Throws Error when the file is of another kind or version.
  FileHeader(const safetensors::File& file, const Kind& kind);

  [[noreturn]] void fail(const std::string& why) const;
  /// An entry, or "".
  std::string text(const std::string& key) const;
  int64_t number(const std::string& key, int64_t low, int64_t high) const;
  /// Entries whose names begin so, without that beginning.
  Identity entries(const std::string& prefix) const;
  /// The data of a tensor that must have exactly this type and so many bytes.
  std::span<const std::byte> bytes_of(const std::string& name, const std::string& dtype, uint64_t bytes) const;
  /// That the entries "model." are this model's.
  void check_model(const Identity& model) const;
  void check_digest() const;

  /// Adds the digest of everything else to what is to be written.
  static void add_digest(std::map<std::string, std::string>& metadata, std::span<const safetensors::Tensor> tensors);

 private:
  const safetensors::File& file_;
};

}  // namespace tersor::cache
