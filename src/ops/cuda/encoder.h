// How this library's kernels enter MLX's CUDA streams.
#pragma once

#include <cassert>  // before MLX's headers, which need it

#include <mlx/array.h>
#include <mlx/backend/cuda/device.h>
#include <mlx/backend/cuda/utils.h>

#include <span>

#include "kernels/cuda/launch.h"
#include "ops/gpu_plugin.h"

namespace tersor::ops::cuda {

namespace mx = mlx::core;
using Encoder = mx::cu::CommandEncoder;

/// The output in memory of its own: in a chain, unless it is kept, in memory that the next chain uses again.
void allocate(mx::array& output);
/// An array for a call's own use, alive until the stream has passed it.
mx::array temporary(Encoder& encoder, mx::Shape shape, mx::Dtype dtype);

/// See GpuPlugin.
void chain_begin(mx::Stream stream, std::span<const std::uintptr_t> kept);
void chain_other(mx::Stream stream);
void chain_keep(mx::Stream stream, const std::vector<mx::array>& nodes);
void chain_end(mx::Stream stream, bool complete);

/// Throws std::runtime_error unless `error` is success.
void check(cudaError_t error, const char* what);

/// Adds a kernel that reads `inputs` and writes `outputs` to the graph that the encoder builds; `params` is the kernel's one argument.
void add_kernel(Encoder& encoder, const kernels::cuda::Launch& launch, const void* params, size_t params_bytes,
                const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs);
template <class Params>
void add_kernel(Encoder& encoder, const kernels::cuda::Launch& launch, const Params* params, const std::vector<mx::array>& inputs,
                const std::vector<mx::array>& outputs) {
  add_kernel(encoder, launch, params, sizeof(Params), inputs, outputs);
}

/// Processors of the encoder's device.
int processors(const Encoder& encoder);

/// Memory that calls of one stream share, one after the other: floats for partial results, and counters that are zero between calls.
/// The next kernel reads and writes it as far as MLX can see, so that no two run side by side.
struct Scratch {
  float* partials;
  unsigned* tickets;
};
Scratch scratch(Encoder& encoder, mx::Stream stream, size_t partial_floats, size_t ticket_count);

/// The output in its input's memory, where nobody else wants that and both lie alike, else in memory of its own.
void take_or_allocate(mx::array& output, const mx::array& input);

void linear(mx::Stream stream, const GpuLinearCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void feed_forward(mx::Stream stream, const GpuFeedForwardCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
bool linear_supports(int bits, int group, Dtype weight, Dtype x);
GpuPacked linear_pack(const GpuPackCall& call);
void rms_norm(mx::Stream stream, float eps, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void rope(mx::Stream stream, const GpuRopeCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void embed(mx::Stream stream, const WeightFormat& format, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void argmax(mx::Stream stream, int count, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void kv_append(mx::Stream stream, const KvAppendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void kv_attend(mx::Stream stream, const KvAttendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);

}  // namespace tersor::ops::cuda
