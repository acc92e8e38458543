// Kernels that follow one another on MLX's stream without its graphs (see GpuPlugin::chain_begin). What encoder.cpp needs to know.
#pragma once

#include "ops/cuda/encoder.h"

namespace tersor::ops::cuda {

/// Whether this thread is in a chain.
bool in_chain();
void add_to_chain(const kernels::cuda::Launch& launch, const void* params, size_t params_bytes);

/// Makes a kernel ready to be launched on a device: its code, and as much shared memory as there is.
void prepare(const kernels::cuda::Launch& launch, int device);

/// Zeroed device memory outside MLX's pool, freed with the array (of uint32).
mx::array device_memory(size_t bytes, int device);

}  // namespace tersor::ops::cuda
