// What this machine is, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/output.h"

namespace tersor::cli {

struct Machine {
  std::string cpu;                          // model name
  std::string simd;                         // target the CPU kernels run with
  std::vector<std::string> simd_available;  // those that TERSOR_SIMD may name here, best first
  std::string mlx;                          // version of the MLX library in use
  std::string backend;                      // "cpu" or "gpu"
  std::string gpu;                          // its name, empty without one
  uint64_t threads = 0, memory_limit = 0;
};
Machine describe_machine();
/// Throws Error for environment variables (TERSOR_THREADS, TERSOR_SIMD) that this machine cannot follow.
void check_environment();
Json to_json(const Machine& machine);
/// "tersor 0.1.0 (MLX 0.32.4, backend cpu)"
std::string version_line();
std::string backend_name();

}  // namespace tersor::cli
