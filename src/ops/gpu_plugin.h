// Kernels for MLX's GPU backend, in a library of their own (libtersor_cuda.so), so that one program runs with MLX for processors as well as
// with MLX for CUDA. It is looked for once, when the GPU is first asked about: beside the program, in ../lib, or where
// TERSOR_CUDA_PLUGIN says.
#pragma once

#include <mlx/array.h>
#include <mlx/stream.h>

#include <string>
#include <vector>

#include "ops/gpu_calls.h"
#include "ops/kv_calls.h"

namespace tersor::ops {

/// Changes with every change of what program and plug-in tell each other.
inline constexpr int kGpuPluginVersion = 2;

/// The plug-in's functions. They run within eval_gpu: allocate outputs, add a kernel to the stream, and do not wait.
struct GpuPlugin {
  int version;
  const char* name;  // "cuda"
  /// Whether there are cache kernels for a head size and these codecs; `full` is the type of full-precision parts.
  bool (*kv_supports)(const codec::Spec& keys, const codec::Spec& values, int head_dim, Dtype full);
  void (*kv_append)(mx::Stream, const KvAppendCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*kv_attend)(mx::Stream, const KvAttendCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  int kv_max_sources;  // of an attention call

  /// Whether weights of so many bits (0: dense, of type `weight`) and groups meet activations of type x.
  bool (*linear_supports)(int bits, int group, Dtype weight, Dtype x);
  /// The type that activations take beside scales of a type is x's; lays weights out and waits until that is done.
  GpuPacked (*linear_pack)(const GpuPackCall&);
  void (*linear)(mx::Stream, const GpuLinearCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*feed_forward)(mx::Stream, const GpuFeedForwardCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*rms_norm)(mx::Stream, float eps, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*rope)(mx::Stream, const GpuRopeCall&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  void (*embed)(mx::Stream, const WeightFormat&, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
  /// The likeliest of the first `count` columns of each row of float logits.
  void (*argmax)(mx::Stream, int count, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);

  /// Between the two, this thread's kernels go straight to the stream, each getting ready while the one before it ends, and outputs
  /// take memory that the next chain uses again, except those of `kept` (by array id). Work that MLX itself adds to the stream in
  /// between is announced by chain_other, beforehand. A chain that is not complete is given up.
  void (*chain_begin)(mx::Stream, std::span<const std::uintptr_t> kept);
  void (*chain_other)(mx::Stream);
  /// Keeps what these arrays' primitives read and made until the stream has passed it.
  void (*chain_keep)(mx::Stream, const std::vector<mx::array>& nodes);
  void (*chain_end)(mx::Stream, bool complete);
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
