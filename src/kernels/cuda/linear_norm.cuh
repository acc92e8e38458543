// Reading x, and the RMS norm that a linear layer of a few rows applies to it on the way.
#pragma once

#include "kernels/cuda/linear_merge.cuh"

namespace tersor::kernels::cuda {

/// 16 numbers of x, zeros beyond its end.
__device__ __forceinline__ void load_sixteen(const LinearRowsParams& p, float (&v)[16], int row, int k) {
  const long long at = row * p.x_stride + k;
  if (k >= p.k) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = 0;
  } else if (!p.bulk_x) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = load_float(p.x_type, p.x, at + i);
  } else {
    alignas(16) uint32_t w[8];
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + at);
    reinterpret_cast<uint4*>(w)[0] = from[0], reinterpret_cast<uint4*>(w)[1] = from[1];
    const bool half = p.x_type == Dtype::f16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 f = half ? __half22float2(pair_of<__half2>(w[i])) : __bfloat1622float2(pair_of<__nv_bfloat162>(w[i]));
      v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
  }
}

/// Sums of squares of each row of x, by warp.
struct RowSquares {
  alignas(16) float v[kLinearNormRows][kRowsWarps];
};

/// Called by the whole block; a barrier must follow.
__device__ __forceinline__ void sum_squares(const LinearRowsParams& p, RowSquares& squares) {
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    float sum = 0;
#pragma unroll 1
    for (int k = threadIdx.x * 16; k < p.k; k += kRowsThreads * 16) {
      float v[16];
      load_sixteen(p, v, row, k);
#pragma unroll
      for (int i = 0; i < 16; ++i) sum = fmaf(v[i], v[i], sum);
    }
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if ((threadIdx.x & 31) == 0) squares.v[row][threadIdx.x >> 5] = sum;
  }
}

/// Whether each thread holds 16 numbers of the one row, and their norm weights, which can be read before x.
__device__ __forceinline__ bool norm_in_registers(const LinearRowsParams& p) {
  return p.norm && p.rows == 1 && p.k <= kRowsThreads * 16 && p.norm_type == Dtype::f32 && (reinterpret_cast<uintptr_t>(p.norm) & 15) == 0;
}
__device__ __forceinline__ void load_norm(const LinearRowsParams& p, float (&w)[16], int k) {
  if (k >= p.k) return;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(w + 4 * i) = *reinterpret_cast<const float4*>(static_cast<const float*>(p.norm) + k + 4 * i);
}
/// 1 / root mean square of the row that the block's threads hold.
__device__ __forceinline__ float row_scale(const LinearRowsParams& p, const float (&v)[16], RowSquares& squares) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum = fmaf(v[i], v[i], sum);
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if ((threadIdx.x & 31) == 0) squares.v[0][threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int i = 0; i < kRowsWarps; i += 4) {
    const float4 part = *reinterpret_cast<const float4*>(&squares.v[0][i]);
    sum += (part.x + part.y) + (part.z + part.w);
  }
  return rsqrtf(sum / static_cast<float>(p.k) + p.norm_eps);
}

/// N numbers of row `row` from column k on become their norm's; those beyond x's end are left as they are.
template <int N>
__device__ __forceinline__ void norm_numbers(const LinearRowsParams& p, float (&v)[N], const RowSquares& squares, int row, int k) {
  if (k >= p.k) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRowsWarps; i += 4) {
    const float4 part = *reinterpret_cast<const float4*>(&squares.v[row][i]);
    sum += (part.x + part.y) + (part.z + part.w);
  }
  const float scale = rsqrtf(sum / static_cast<float>(p.k) + p.norm_eps);
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] *= scale * load_float(p.norm_type, p.norm, k + i);
}

}  // namespace tersor::kernels::cuda
