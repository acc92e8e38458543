// One vector spread over a warp: loading, rotating (codec/rotation.h), storing.
#pragma once

#include "kernels/cuda/kv_format.h"
#include "kernels/cuda/kv_primitives.cuh"

namespace tersor::kernels::cuda {

/// Number j of lane `lane` is number index(lane, j) of the vector; powers of two lie contiguously, so that they load as one word.
template <int D>
struct WarpVector {
  static constexpr bool kPower = (D & (D - 1)) == 0;
  static constexpr int kEach = (D + 31) / 32;
  static constexpr int kCore = D == 80 ? 20 : D == 96 ? 12 : 1;  // order of the rotation's core matrix
  static constexpr int kBlock = D / kCore;
  __device__ static __forceinline__ int index(int lane, int j) { return kPower ? lane * kEach + j : lane + 32 * j; }
  __device__ static __forceinline__ bool inside(int lane, int j) { return kPower || lane + 32 * j < D; }
};

__device__ __forceinline__ float load_number(const void* p, Number type, int64_t i) {
  if (type == Number::f16) return __half2float(static_cast<const __half*>(p)[i]);
  if (type == Number::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
__device__ __forceinline__ void store_number(void* p, Number type, int64_t i, float x) {
  if (type == Number::f16)
    static_cast<__half*>(p)[i] = __float2half_rn(x);
  else if (type == Number::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x);
  else
    static_cast<float*>(p)[i] = x;
}
__device__ __forceinline__ const void* row_of(const Rows& rows, int64_t batch, int64_t head, int64_t token) {
  const int64_t at = batch * rows.batch_stride + head * rows.head_stride + token * rows.token_stride;
  return static_cast<const char*>(rows.data) + at * (rows.type == Number::f32 ? 4 : 2);
}

__device__ __forceinline__ float2 unpack_pair(uint32_t w, bool half) {
  return half ? __half22float2(*reinterpret_cast<const __half2*>(&w)) : __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&w));
}

/// The row as floats; numbers outside are zero. Aligned contiguous rows of 16-bit numbers are read with one instruction a lane, which the
/// compiler keeps ahead of later asynchronous copies.
template <int D>
__device__ __forceinline__ void load_vector(const void* row, const Rows& rows, int lane, float (&v)[WarpVector<D>::kEach]) {
  using V = WarpVector<D>;
  constexpr int kWords = V::kEach / 2;
  const Number type = rows.type;
  if constexpr (V::kPower) {
    if (type != Number::f32 && rows.dim_stride == 1 && (reinterpret_cast<uint64_t>(row) & (V::kEach * 2 - 1)) == 0) {
      const uint32_t* from = static_cast<const uint32_t*>(row) + lane * kWords;
      uint32_t w[kWords];
      if constexpr (kWords == 1) asm volatile("ld.global.u32 %0, [%1];" : "=r"(w[0]) : "l"(from) : "memory");
      if constexpr (kWords == 2) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(from) : "memory");
      if constexpr (kWords == 4)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(from) : "memory");
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float2 pair = unpack_pair(w[i], type == Number::f16);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
      }
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < V::kEach; ++j) v[j] = V::inside(lane, j) ? load_number(row, type, V::index(lane, j) * rows.dim_stride) : 0.0f;
}

/// Walsh-Hadamard transforms of all blocks of kBlock numbers.
template <int D>
__device__ __forceinline__ void walsh_hadamard(float (&v)[WarpVector<D>::kEach], int lane) {
  using V = WarpVector<D>;
  if constexpr (V::kPower) {
#pragma unroll
    for (int half = 1; half < V::kEach; half *= 2)
#pragma unroll
      for (int j = 0; j < V::kEach; ++j)
        if (!(j & half)) {
          const float a = v[j], b = v[j + half];
          v[j] = a + b, v[j + half] = a - b;
        }
  }
  constexpr int kLanes = V::kPower ? 32 : V::kBlock;
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2)
#pragma unroll
    for (int j = 0; j < V::kEach; ++j) {
      const float other = xor_shuffle(v[j], mask);
      v[j] = (lane & mask) ? other - v[j] : v[j] + other;
    }
}

/// Multiplies by the core matrix (or its transpose), through `scratch` [D] of shared memory of this warp.
template <int D, bool kTransposed>
__device__ __forceinline__ void mix_core(float (&v)[WarpVector<D>::kEach], const RotationBits& rotation, int lane, float* scratch) {
  using V = WarpVector<D>;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < V::kEach; ++j)
    if (V::inside(lane, j)) scratch[V::index(lane, j)] = v[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < V::kEach; ++j) {
    const int d = V::index(lane, j), row = d / V::kBlock, i = d % V::kBlock;
    float sum = 0;
    if (V::inside(lane, j))
      for (int c = 0; c < V::kCore; ++c) {
        const uint32_t minus = kTransposed ? rotation.core[c] >> row & 1 : rotation.core[row] >> c & 1;
        const float x = scratch[c * V::kBlock + i];
        sum += minus ? -x : x;
      }
    v[j] = sum;
  }
}

template <int D>
__device__ __forceinline__ void apply_signs(float (&v)[WarpVector<D>::kEach], const uint32_t* signs, int lane) {
  using V = WarpVector<D>;
  const float norm = rsqrtf(static_cast<float>(D));
#pragma unroll
  for (int j = 0; j < V::kEach; ++j) {
    const int d = V::index(lane, j);
    const float factor = V::inside(lane, j) && (signs[d >> 5] >> (d & 31) & 1) ? -norm : norm;
    v[j] *= factor;
  }
}

/// Warp-uniform: every lane calls it. scratch: [D] floats of this warp in shared memory where D is no power of two.
template <int D>
__device__ __forceinline__ void rotate(float (&v)[WarpVector<D>::kEach], const RotationBits& rotation, int lane, float* scratch) {
  for (int round = 0; round < rotation.rounds; ++round) {
    apply_signs<D>(v, rotation.signs[round], lane);
    walsh_hadamard<D>(v, lane);
    if constexpr (WarpVector<D>::kCore > 1) mix_core<D, false>(v, rotation, lane, scratch);
  }
}
template <int D>
__device__ __forceinline__ void rotate_back(float (&v)[WarpVector<D>::kEach], const RotationBits& rotation, int lane, float* scratch) {
  for (int round = rotation.rounds; round-- > 0;) {
    if constexpr (WarpVector<D>::kCore > 1) mix_core<D, true>(v, rotation, lane, scratch);
    walsh_hadamard<D>(v, lane);
    apply_signs<D>(v, rotation.signs[round], lane);
  }
}

}  // namespace tersor::kernels::cuda
