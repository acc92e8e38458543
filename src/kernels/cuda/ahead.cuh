// Kernels that start while the one before them on their stream still runs (programmatic dependent launch). What a kernel does before
// wait_for_earlier() must neither read what an earlier kernel of the chain writes nor write anything that others see. Every kernel waits,
// so that what has ended before one of them has ended before all that follow. Launched in any other way, a kernel finds nothing to wait for.
#pragma once

namespace tersor::kernels::cuda {

/// The next kernel's blocks may take the room that blocks of this one leave.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Returns when all earlier kernels have ended and their writes can be read.
__device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tersor::kernels::cuda
