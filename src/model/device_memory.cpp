#include "model/device_memory.h"

#include <mlx/device.h>

#include <variant>

#include "tersor/base.h"

namespace tersor::model {
namespace {

namespace mx = mlx::core;

// Bytes that the GPU has in all, under the name of MLX's CUDA or Metal backend; 0 when it does not say.
uint64_t gpu_memory() {
  const auto& info = mx::device_info(mx::default_device());
  for (const char* key : {"total_memory", "memory_size"})
    if (const auto found = info.find(key); found != info.end())
      if (const auto* bytes = std::get_if<size_t>(&found->second)) return *bytes;
  return 0;
}

void require(uint64_t bytes, uint64_t memory, const std::string& owner, const std::string& what, const std::string& remedy) {
  const uint64_t limit = memory / 10 * 9;
  if (bytes > limit) throw Error(what + ", more than nine tenths of this " + owner + "'s memory (" + human_bytes(limit) + "); " + remedy);
}

}  // namespace

void require_memory(uint64_t bytes, const std::string& what, const std::string& remedy) {
  require(bytes, memory_limit(), "machine", what, remedy);
}

void require_device_memory(uint64_t bytes, const std::string& what, const std::string& remedy) {
  const uint64_t gpu = mx::default_device() == mx::Device::gpu ? gpu_memory() : 0;
  if (gpu)
    require(bytes, gpu, "GPU", what, remedy);
  else
    require_memory(bytes, what, remedy);
}

}  // namespace tersor::model
