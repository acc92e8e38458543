// Rotations of several vectors side by side, so that the warp's exchanges of one do not wait for those of another.
#pragma once

#include "kernels/cuda/kv_rotate.cuh"

namespace tersor::kernels::cuda {

/// walsh_hadamard of each.
template <int D, int N>
__device__ __forceinline__ void walsh_hadamard_many(float (&v)[N][WarpVector<D>::kEach], int lane) {
  using V = WarpVector<D>;
  if constexpr (V::kPower) {
#pragma unroll
    for (int half = 1; half < V::kEach; half *= 2)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int j = 0; j < V::kEach; ++j)
          if (!(j & half)) {
            const float a = v[n][j], b = v[n][j + half];
            v[n][j] = a + b, v[n][j + half] = a - b;
          }
  }
  constexpr int kLanes = V::kPower ? 32 : V::kBlock;
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const float sign = lane & mask ? -1.0f : 1.0f;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int j = 0; j < V::kEach; ++j) v[n][j] = fmaf(sign, v[n][j], xor_shuffle(v[n][j], mask));
  }
}

/// rotate, or rotate_back, of each.
template <int D, int N, bool kBack>
__device__ __forceinline__ void rotate_many(float (&v)[N][WarpVector<D>::kEach], const RotationBits& rotation, int lane, float* scratch) {
  for (int i = 0; i < rotation.rounds; ++i) {
    const int round = kBack ? rotation.rounds - 1 - i : i;
    if constexpr (!kBack) {
#pragma unroll
      for (int n = 0; n < N; ++n) apply_signs<D>(v[n], rotation.signs[round], lane);
    }
    if constexpr (kBack && WarpVector<D>::kCore > 1) {
#pragma unroll
      for (int n = 0; n < N; ++n) mix_core<D, true>(v[n], rotation, lane, scratch);
    }
    walsh_hadamard_many<D, N>(v, lane);
    if constexpr (!kBack && WarpVector<D>::kCore > 1) {
#pragma unroll
      for (int n = 0; n < N; ++n) mix_core<D, false>(v[n], rotation, lane, scratch);
    }
    if constexpr (kBack) {
#pragma unroll
      for (int n = 0; n < N; ++n) apply_signs<D>(v[n], rotation.signs[round], lane);
    }
  }
}

}  // namespace tersor::kernels::cuda
