// y = x W^T for 5 to 16 rows of x: the weights are the first operand of mma.m16n8k16, 16 weight rows against 8 rows of x.
//
// A block of 16 warps takes some strips and one part of k. x's part comes into shared memory as it is, in a few pieces along k with a
// barrier each; every warp streams its own tiles through its own ring. Codes go into the tensor cores as whole numbers, exactly (plus
// an offset that costs no instruction), and a group's sum c becomes scale * c + (bias - offset * scale) * (sum of x over the group)
// in float, so that no weight is rounded. The sums of x, products with ones, are made while the first weights are on their way. Warps
// that share a strip add up in shared memory, parts of k through global memory: the last block to arrive adds them in order, so that
// equal inputs give equal bits.
#pragma once

#include "kernels/cuda/linear_merge.cuh"
#include "kernels/cuda/linear_ring.cuh"

namespace tersor::kernels::cuda {

constexpr int kXPieces = 4;

__device__ __forceinline__ bool bulk_x(const LinearRowsParams& p) { return TERSOR_BULK_COPY && p.bulk_x; }

/// Sends for x's columns [k0, k1), in pieces along k; called by one warp, which also sets the pieces' barriers up.
__device__ __forceinline__ void send_for_x(const LinearRowsParams& p, uint8_t* to, int x_row, int k0, int k1, int piece_k,
                                           uint32_t barriers) {
  const int lane = threadIdx.x & 31;
  if (lane < kXPieces) barrier_init(barriers + 8 * lane, bulk_x(p) ? p.rows : 1);
#if TERSOR_BULK_COPY
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  if (!bulk_x(p)) return;
#pragma unroll 1
  for (int i = lane; i < p.rows * kXPieces; i += 32) {
    const int row = i / kXPieces, first = k0 + i % kXPieces * piece_k, last = min(min(first + piece_k, k1), p.k);
    const uint32_t bytes = first < last ? (last - first) * 2 : 0, bar = barriers + 8 * (i % kXPieces);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(bytes) : "memory");
    if (bytes)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(
                       shared_address(to + row * x_row + (first - k0) * 2)),
                   "l"(static_cast<const uint8_t*>(p.x) + (row * p.x_stride + first) * 2), "r"(bytes), "r"(bar)
                   : "memory");
  }
#endif
}

/// What send_for_x does not do: columns beyond x's end become zeros, and x of another type or alignment is converted.
template <class T>
__device__ __noinline__ void convert_x(const LinearRowsParams& p, uint8_t* to, int x_row, int k0, int k1) {
  const int first = bulk_x(p) ? p.k : k0, columns = k1 - first;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.rows * columns; i += kRowsThreads) {
    const int row = i / columns, k = first + i % columns;
    const float v = k < p.k ? load_float(p.x_type, p.x, row * p.x_stride + k) : 0.f;
    *reinterpret_cast<T*>(to + row * x_row + (k - k0) * 2) = from_float<T>(v);
  }
}

/// Where lane's row of the ldmatrix for NT column tiles starts; rows that x does not have repeat its last one.
template <int NT>
struct XRows {
  uint32_t at[NT];
  __device__ __forceinline__ XRows(const uint8_t* x, int x_row, int rows) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < NT; ++n) at[n] = shared_address(x) + min(n * 8 + (lane & 7), rows - 1) * x_row + (lane >> 3) * 16;
  }
};

/// sums[group][column] = sum of x over the group, for the groups from first on before last.
template <int GROUP, class T, int NT>
__device__ __forceinline__ void sum_groups(const XRows<NT>& x, float* sums, int first, int last) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t one = bits_of(both<T>(1.f));
  const uint32_t ones[4] = {one, one, one, one};
#pragma unroll 4
  for (int group = first + warp; group < last; group += kRowsWarps) {
    float c[NT][4] = {};
#pragma unroll
    for (int i = 0; i < GROUP / 32; ++i) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        uint32_t b[4];
        load_matrices(b, x.at[n] + (group * GROUP + i * 32) * 2);
        mma_16x8x16<T>(c[n], ones, b[0], b[1]);
        mma_16x8x16<T>(c[n], ones, b[2], b[3]);
      }
    }
    if (lane >= 4) continue;
#pragma unroll
    for (int n = 0; n < NT; ++n) *reinterpret_cast<float2*>(sums + (group * NT + n) * 8 + 2 * lane) = make_float2(c[n][0], c[n][1]);
  }
}

/// acc += tile times x, where x stands at the tile's first column and sums at its first group.
template <int BITS, int GROUP, class S, class T, int NT>
__device__ __forceinline__ void multiply_tile(float (&acc)[NT][4], const uint8_t* tile, const uint32_t (&x)[NT], const float* sums) {
  constexpr int kGroups = tile_k(BITS) / GROUP, kPairs = tile_k(BITS) / 32, kGroupPairs = GROUP / 32;
  constexpr float kOffset = Codes<BITS, T>::kOffset;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  ScaleRow<S, kGroups> low, high;
  low.load(tile + kCodeBytes + g * low.kBytes);
  high.load(tile + kCodeBytes + (g + 8) * high.kBytes);
  float c[NT][4];
  uint4 codes;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {  // 32 along k
    constexpr int kUnitPairs = BITS == 4 ? 2 : 1;
    if (pair % kUnitPairs == 0) codes = *reinterpret_cast<const uint4*>(tile + pair / kUnitPairs * kUnitBytes + lane * 16);
    const bool second = pair % kUnitPairs == 1;
    uint32_t a[2][4];
    if constexpr (BITS == 4) {
      Codes<4, T>::fragment(a[0], second ? codes.z : codes.x, 0);
      Codes<4, T>::fragment(a[1], second ? codes.w : codes.y, 0);
    } else {
      Codes<8, T>::fragment(a[0], codes.x, codes.y);
      Codes<8, T>::fragment(a[1], codes.z, codes.w);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (pair % kGroupPairs == 0)
        for (int i = 0; i < 4; ++i) c[n][i] = 0;
      uint32_t b[4];
      load_matrices(b, x[n] + pair * 64);
      mma_16x8x16<T>(c[n], a[0], b[0], b[1]);
      mma_16x8x16<T>(c[n], a[1], b[2], b[3]);
      if (pair % kGroupPairs != kGroupPairs - 1) continue;
      const int group = pair / kGroupPairs;
      const float2 sum = *reinterpret_cast<const float2*>(sums + (group * NT + n) * 8 + 2 * t);
      const float low_bias = fmaf(-kOffset, low.scale(group), low.bias(group)),
                  high_bias = fmaf(-kOffset, high.scale(group), high.bias(group));
      acc[n][0] = fmaf(low.scale(group), c[n][0], fmaf(low_bias, sum.x, acc[n][0]));
      acc[n][1] = fmaf(low.scale(group), c[n][1], fmaf(low_bias, sum.y, acc[n][1]));
      acc[n][2] = fmaf(high.scale(group), c[n][2], fmaf(high_bias, sum.x, acc[n][2]));
      acc[n][3] = fmaf(high.scale(group), c[n][3], fmaf(high_bias, sum.y, acc[n][3]));
    }
  }
}

template <int BITS, int GROUP, class S, class T, int NT>
__global__ void __launch_bounds__(kRowsThreads, 1) linear_rows_kernel(const __grid_constant__ LinearRowsParams p) {
  constexpr int kTile = tile_bytes(BITS, GROUP, sizeof(S)), kTileK = tile_k(BITS);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ alignas(8) uint64_t barriers[kRowsWarps][kMostStages], x_here[kXPieces];
  const int warp = threadIdx.x >> 5, k_warps = kRowsWarps >> p.row_warps_log2, row_warps = 1 << p.row_warps_log2;
  const int side = warp & (row_warps - 1), depth = warp >> p.row_warps_log2;
  const int strip0 = blockIdx.x * p.strips_per_block, strip1 = min(p.strips, strip0 + p.strips_per_block);
  const int tile0 = blockIdx.y * p.tiles_per_split, tile1 = min(p.tiles, tile0 + p.tiles_per_split);
  PackedRing<kTile> ring(p.weights, shared + warp * p.stages * kTile, barriers[warp], p.stages,
                         {strip0 + side, strip1, row_warps, tile0 + depth, tile0 + depth, tile1, k_warps, p.tiles});
  // The code of a kernel's start comes slowly, from far away: weights are sent for before all else, but no more than leaves x its turn.
  ring.start(p.early);
  wait_for_earlier();
  const int k0 = tile0 * kTileK, k1 = tile1 * kTileK;
  if (warp == 0) send_for_x(p, shared + p.x_at, p.x_row, k0, k1, kTileK << p.piece_shift, shared_address(x_here));
  if (!bulk_x(p) || k1 > p.k) convert_x<T>(p, shared + p.x_at, p.x_row, k0, k1);
  __syncthreads();
  ring.fill(p.early);
  if (!bulk_x(p) && threadIdx.x < kXPieces) barrier_arrive(shared_address(&x_here[threadIdx.x]));
  const XRows<NT> x(shared + p.x_at, p.x_row, p.rows);
  float* const sums = reinterpret_cast<float*>(shared + p.sums_at);
#pragma unroll 1
  for (int i = 0, first = tile0; first < tile1; ++i, first += 1 << p.piece_shift) {
    barrier_wait(shared_address(&x_here[i]), 0);
    const int last = min(first + (1 << p.piece_shift), tile1);
    sum_groups<GROUP, T, NT>(x, sums, (first - tile0) * (kTileK / GROUP), (last - tile0) * (kTileK / GROUP));
  }
  __syncthreads();
  for (int strip = strip0 + side; strip < strip1; strip += row_warps) {
    float acc[NT][4] = {};
    for (int tile = tile0 + depth; tile < tile1; tile += k_warps) {
      uint32_t columns[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) columns[n] = x.at[n] + (tile - tile0) * kTileK * 2;
      multiply_tile<BITS, GROUP, S, T, NT>(acc, ring.wait(), columns, sums + (tile - tile0) * (kTileK / GROUP) * NT * 8);
      ring.release();
    }
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    add_warps<NT * 8>(p, reinterpret_cast<float*>(shared + p.reduce_at), strip, side, strip == strip0 + side, [&](float* to) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(n * 8 + 2 * t + (i & 1)) * kReduceColumn + g + 8 * (i >> 1)] = acc[n][i];
    });
  }
  let_next_start();  // its first weights are sent for behind the last of these
  if (p.splits > 1) add_splits(p, strip0, strip1);
}

/// The kernel of a problem's group, types and number of rows; one definition a number of bits, so that they compile side by side.
const void* linear_rows_function_4(int group, Dtype scale, Dtype x, int rows);
const void* linear_rows_function_8(int group, Dtype scale, Dtype x, int rows);

template <int BITS, int GROUP, class S, class T>
const void* rows_function(int rows) {
  if (rows > 8) return reinterpret_cast<const void*>(&linear_rows_kernel<BITS, GROUP, S, T, 2>);
  return reinterpret_cast<const void*>(&linear_rows_kernel<BITS, GROUP, S, T, 1>);
}
template <int BITS, class S, class T>
const void* rows_function(int group, int rows) {
  if (group == 32) return rows_function<BITS, 32, S, T>(rows);
  if (group == 64) return rows_function<BITS, 64, S, T>(rows);
  return rows_function<BITS, 128, S, T>(rows);
}
template <int BITS>
const void* rows_function(int group, Dtype scale, Dtype x, int rows) {
  if (scale == Dtype::f32 && x == Dtype::f16) return rows_function<BITS, float, __half>(group, rows);
  if (scale == Dtype::f32) return rows_function<BITS, float, __nv_bfloat16>(group, rows);
  if (x != scale && x != Dtype::f32) return nullptr;
  if (scale == Dtype::f16) return rows_function<BITS, __half, __half>(group, rows);
  return rows_function<BITS, __nv_bfloat16, __nv_bfloat16>(group, rows);
}

}  // namespace tersor::kernels::cuda
