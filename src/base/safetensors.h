// The safetensors container: u64 header bytes, a JSON object of tensors, tensor data. Knows nothing of models.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tersor/base.h"

namespace tersor::safetensors {

struct Tensor {
  std::string name, dtype;  // dtype as written: "F16", "U32", ...
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;  // in the mapping
};

/// A file whose header, dtypes, shapes and offsets have been checked: every tensor lies inside the file, has the size that its
/// shape and dtype give (where the dtype is known) and overlaps no other.
class File {
 public:
  /// Throws Error naming the file, the tensor and what is wrong.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.bytes().size(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of their data
  const Tensor* find(const std::string& name) const;               // null when there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file atomically; tensors in the order given, metadata sorted by key, so that equal content gives equal bytes.
/// Throws Error when the place is not writable or full.
void write(const std::filesystem::path& path, std::span<const Tensor> tensors, const std::map<std::string, std::string>& metadata);

/// Bytes of an element, or 0 when the dtype is not known.
uint64_t element_size(const std::string& dtype);

}  // namespace tersor::safetensors
