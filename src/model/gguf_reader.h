// Reading a GGUF header front to back, with every length checked against the file before it is used.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf.h"

namespace tersor::model::gguf {

class HeaderReader {
 public:
  explicit HeaderReader(const MappedFile& file) : path_(file.path().string()), bytes_(file.bytes()) {}

  /// Checks magic and version, and that the counts could fit in the file.
  void preamble();
  std::map<std::string_view, Value> metadata();
  /// Places are still relative to the data section.
  std::vector<Tensor> tensor_list();
  /// Finds the data section, checks that tensors are aligned, inside the file and apart from each other, and sets offset and data.
  void place_tensors(std::vector<Tensor>& tensors, uint64_t alignment) const;

  uint32_t version() const { return version_; }

 private:
  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take(uint64_t size, const char* what);
  std::string_view string(const char* what);
  Value value(int depth);
  void skip_element(ValueType type, int depth);
  ValueType value_type();
  Tensor tensor();
  void place(Tensor& tensor, uint64_t start, uint64_t alignment) const;
  [[noreturn]] void fail(const std::string& text) const;

  std::string path_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  uint32_t version_ = 0;
  uint64_t tensors_ = 0, keys_ = 0;
  std::string context_ = "the file header";  // what is being read, for errors
};

/// Bytes of a scalar; 0 for strings and arrays.
uint64_t scalar_size(ValueType type);

}  // namespace tersor::model::gguf
