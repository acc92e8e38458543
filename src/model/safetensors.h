// The safetensors container: u64 header bytes, a JSON object of tensors, tensor data. Knows nothing of models.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tersor/base.h"

namespace tersor::model::safetensors {

struct Tensor {
  std::string name, dtype;               // dtype as written: "F16", "U32", ...
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;       // in the mapping
};

/// A file whose header, dtypes, shapes and offsets have been checked: every tensor lies inside the file, has the size that its
/// shape and dtype give (where the dtype is known) and overlaps no other.
class File {
 public:
  /// Throws Error naming the file, the tensor and what is wrong.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.bytes().size(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }   // in the order of their data

 private:
  MappedFile file_;
  std::vector<Tensor> tensors_;
};

/// Bytes of an element, or 0 when the dtype is not known.
uint64_t element_size(const std::string& dtype);

}  // namespace tersor::model::safetensors
