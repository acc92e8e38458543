// Kernels that start while the one before them on their stream still runs (programmatic dependent launch). What a kernel does before
// wait_for_earlier() must neither read what an earlier kernel of the chain writes nor write anything that others see. Every kernel waits,
// so that what has ended before one of them has ended before all that follow. Launched another way, a kernel finds nothing to wait for.
// Appending to a cache and linear kernels let the next one start after they have waited, so that all before them has ended for good when it
// does. Attention, which follows an append, relies on that: it sends for the cache's older tiles before it waits.
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

/// Brings parameters into the constant cache: each first touch takes as long as memory, and one by one they would delay
/// each other.
template <class Params>
__device__ __forceinline__ void touch_lines(const Params& p) {
  const unsigned* const words = reinterpret_cast<const unsigned*>(&p);
  constexpr int kWords = sizeof(Params) / 4, kLine = 16;
#pragma unroll
  for (int i = 0; i < kWords; i += kLine) {
    unsigned word = words[i];
    asm volatile("" : "+r"(word));
  }
}

/// For bytes that are read once a step: they leave the second cache first, which keeps what every step comes back to (the kernels' own
/// code above all, which would otherwise come from memory each time).
__device__ __forceinline__ unsigned long long read_once_policy() {
  unsigned long long policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

}  // namespace tersor::kernels::cuda
