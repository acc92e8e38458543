#include "cli/machine.h"

#include <mlx/device.h>
#include <mlx/version.h>

#include <fstream>
#include <variant>

#include "base/thread_pool.h"
#include "kernels/cpu/simd_target.h"
#include "tersor/base.h"

namespace tersor::cli {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") || line.starts_with("Model"))
      if (const size_t at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  return "unknown";
}

std::string gpu_name() {
  if (backend_name() != "gpu") return {};
  const auto& info = mlx::core::device_info(mlx::core::default_device());
  const auto found = info.find("device_name");
  const auto* name = found == info.end() ? nullptr : std::get_if<std::string>(&found->second);
  return name ? *name : "unknown";
}

}  // namespace

std::string backend_name() { return mlx::core::default_device() == mlx::core::Device::gpu ? "gpu" : "cpu"; }

std::string version_line() {
  return "tersor " TERSOR_VERSION " (MLX " + std::string(mlx::core::version()) + ", backend " + backend_name() + ")";
}

void check_environment() {
  ThreadPool::instance();
  kernels::apply_simd_environment();
}

Machine describe_machine() {
  check_environment();
  return {cpu_name(),
          kernels::simd_target_name(),
          kernels::available_simd_targets(),
          mlx::core::version(),
          backend_name(),
          gpu_name(),
          ThreadPool::instance().size(),
          memory_limit()};
}

Json to_json(const Machine& machine) {
  Json json{{"cpu", machine.cpu}, {"simd", machine.simd},       {"simd_available", machine.simd_available}, {"threads", machine.threads},
            {"mlx", machine.mlx}, {"backend", machine.backend}, {"memory_limit", machine.memory_limit},     {"tersor", TERSOR_VERSION}};
  if (!machine.gpu.empty()) json["gpu"] = machine.gpu;
  return json;
}

}  // namespace tersor::cli
