// Kernels for MLX's GPU backend, in a library of their own (libtersor_cuda.so), so that one program runs with MLX for processors as well as
// with MLX for CUDA. It is looked for once, when the GPU is first asked about: beside the program, in ../lib, or where
// TERSOR_CUDA_PLUGIN says.
#pragma once

#include <mlx/array.h>
#include <mlx/stream.h>

#include <string>
#include <vector>

#include "ops/kv_calls.h"

namespace tersor::ops {

/// Changes with every change of what program and plug-in tell each other.
inline constexpr int kGpuPluginVersion = 1;

/// The plug-in's functions. They run within eval_gpu: allocate outputs, add a kernel to the stream, and do not wait.
struct GpuPlugin {
  int version;
  const char* name;  // "cuda"
  /// Whether there are cache kernels for a head size and these codecs; `full` is the type of full-precision parts.
  bool (*kv_supports)(const codec::Spec& keys, const codec::Spec& values, int head_dim, Dtype full);
  void (*kv_append)(mx::Stream, const KvAppendCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*kv_attend)(mx::Stream, const KvAttendCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  int kv_max_sources;  // of an attention call
};
/// The one symbol of the library: const GpuPlugin* tersor_gpu_plugin().
inline constexpr const char* kGpuPluginSymbol = "tersor_gpu_plugin";

/// Null when MLX has no GPU here, or the library is not there or of another version.
const GpuPlugin* gpu_plugin();
/// Why gpu_plugin() is null, in one line.
const std::string& gpu_plugin_problem();
/// Throws std::runtime_error when there is none.
const GpuPlugin& require_gpu_plugin(const std::string& op);

}  // namespace tersor::ops
