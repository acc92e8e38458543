// How this library's kernels enter MLX's CUDA streams.
#pragma once

#include <cassert>  // before MLX's headers, which need it

#include <mlx/array.h>
#include <mlx/backend/cuda/device.h>
#include <mlx/backend/cuda/utils.h>

#include "kernels/cuda/launch.h"
#include "ops/gpu_plugin.h"

namespace tersor::ops::cuda {

namespace mx = mlx::core;
using Encoder = mx::cu::CommandEncoder;

/// Adds a kernel that reads `inputs` and writes `outputs` to the graph that the encoder builds; `params` is the kernel's one argument.
void add_kernel(Encoder& encoder, const kernels::cuda::Launch& launch, const void* params, const std::vector<mx::array>& inputs,
                const std::vector<mx::array>& outputs);

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

void kv_append(mx::Stream stream, const KvAppendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);
void kv_attend(mx::Stream stream, const KvAttendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs);

}  // namespace tersor::ops::cuda
