#include "kernels/cuda/copy.h"

#include <cstdint>

#include "kernels/cuda/ahead.cuh"

namespace tersor::kernels::cuda {
namespace {

template <class T>
__global__ void copy_kernel(const __grid_constant__ CopyParams p) {
  let_next_start();
  wait_for_earlier();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += step) {
    long long rest = i, at = 0;
    for (int axis = p.axes; axis-- > 0;) {
      at += rest % p.shape[axis] * p.strides[axis];
      rest /= p.shape[axis];
    }
    static_cast<T*>(p.to)[i] = static_cast<const T*>(p.from)[at];
  }
}

const void* function_of(int bytes) {
  switch (bytes) {
    case 1: return reinterpret_cast<const void*>(&copy_kernel<uint8_t>);
    case 2: return reinterpret_cast<const void*>(&copy_kernel<uint16_t>);
    case 4: return reinterpret_cast<const void*>(&copy_kernel<uint32_t>);
    case 8: return reinterpret_cast<const void*>(&copy_kernel<uint64_t>);
    default: return nullptr;
  }
}

}  // namespace

Launch copy_strided(const CopyParams& p) {
  constexpr long long kThreads = 256, kMostBlocks = 4096;
  if (p.count < 1) return {};
  const long long blocks = (p.count + kThreads - 1) / kThreads;
  return {function_of(p.bytes), {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), 1, 1}, {kThreads, 1, 1}, 0};
}

}  // namespace tersor::kernels::cuda
