// The *.safetensors files of a model folder.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/safetensors.h"

namespace tersor::model::hf {

/// model.safetensors, or every file that model.safetensors.index.json lists. Tensors are found by name, whichever file holds them.
class Shards {
 public:
  /// Throws Error when files or tensors are missing, occur twice, or the index names files outside the folder.
  explicit Shards(const std::filesystem::path& folder);

  const safetensors::Tensor* find(const std::string& name) const;
  /// The file that holds a tensor.
  std::string place_of(const std::string& name) const;
  const std::map<std::string, std::pair<const safetensors::Tensor*, const safetensors::File*>>& tensors() const { return tensors_; }
  uint64_t bytes() const;
  const std::vector<std::unique_ptr<safetensors::File>>& files() const { return files_; }

 private:
  void open_listed(const std::filesystem::path& folder, const std::filesystem::path& index);
  void open(const std::filesystem::path& path);

  std::vector<std::unique_ptr<safetensors::File>> files_;
  std::map<std::string, std::pair<const safetensors::Tensor*, const safetensors::File*>> tensors_;
};

}  // namespace tersor::model::hf
