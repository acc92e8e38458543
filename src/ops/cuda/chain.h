// Kernels that follow one another on MLX's stream without its graphs (see GpuPlugin::chain_begin). What encoder.cpp needs to know.
#pragma once

#include "ops/cuda/encoder.h"

namespace tersor::ops::cuda {

/// Whether this thread is in a chain.
bool in_chain();
void launch_in_chain(Encoder& encoder, const kernels::cuda::Launch& launch, void** arguments);

/// Zeroed device memory outside MLX's pool, freed with the array (of uint32).
mx::array device_memory(size_t bytes, int device);

}  // namespace tersor::ops::cuda
