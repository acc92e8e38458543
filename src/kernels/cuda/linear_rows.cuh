// y = x W^T for 1 to 16 rows of x: the weights are the first operand of mma.m16n8k16, 16 weight rows against 8 rows of x.
//
// A block of 16 warps takes some strips and one part of k. x's part comes into shared memory as it is, in a few pieces along k with a
// barrier each; every warp streams its own tiles through its own ring. Codes go into the tensor cores as whole numbers, exactly (plus
// an offset that costs no instruction), and a group's sum c becomes scale * c + (bias - offset * scale) * (sum of x over the group)
// in float, so that no weight is rounded. The sums of x are products with ones. Warps that share a strip add up in shared memory,
// parts of k through global memory: the last block to arrive adds them in order, so that equal inputs give equal bits.
#pragma once

#include "kernels/cuda/linear_finish.cuh"
#include "kernels/cuda/linear_ring.cuh"

namespace tersor::kernels::cuda {

constexpr int kRowsWarps = 16, kRowsThreads = kRowsWarps * 32, kXPieces = 4;
constexpr int kReduceColumn = 20;  // floats from column to column of a deposit: 16 rows, and 4 to spare the banks

/// Shared memory of a block, in this order; offsets in bytes.
struct RowsShared {
  int ring, x, reduce, total, x_row;  // x_row: bytes from row to row of x
};
TERSOR_BOTH inline RowsShared rows_shared(int tile, int stages, int tile_codes, int tiles, int rows) {
  RowsShared s;
  s.ring = 0;
  s.x = kRowsWarps * stages * tile;
  s.x_row = tiles * tile_codes * 2 + 16;  // rows start 16 bytes apart modulo the banks, for ldmatrix
  s.reduce = s.x + rows * s.x_row;
  s.total = s.reduce + kRowsWarps * (rows > 8 ? 16 : 8) * kReduceColumn * 4;
  return s;
}

/// x's columns [k, k + columns) into shared memory, converted to T, zeros beyond p.k; then every thread arrives at the barrier.
template <class T>
__device__ __forceinline__ void load_x(const LinearRowsParams& p, uint8_t* to, int x_row, int k, int columns, uint32_t barrier) {
  const int pieces = columns / 8, row_step = kRowsThreads / pieces, piece_step = kRowsThreads % pieces;
  const bool same = p.x_type == (std::is_same_v<T, __half> ? Dtype::f16 : Dtype::bf16);
  int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;
  while (row < p.rows) {
    uint8_t* at = to + row * x_row + piece * 16;
    const bool inside = k + piece * 8 < p.k;
    const long long from = row * p.x_stride + k + piece * 8;
    if (same) {
      copy_16(shared_address(at), static_cast<const T*>(p.x) + (inside ? from : 0), inside ? 16 : 0);
    } else {
      alignas(16) T v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = from_float<T>(inside ? load_float(p.x_type, p.x, from + j) : 0.f);
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<uint4*>(v);
    }
    row += row_step, piece += piece_step;
    if (piece >= pieces) piece -= pieces, ++row;
  }
  if (same) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
  else barrier_arrive(barrier);
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

/// acc += tile times x, where x stands at the tile's first column.
template <int BITS, int GROUP, class S, class T, int NT>
__device__ __forceinline__ void multiply_tile(float (&acc)[NT][4], const uint8_t* tile, const uint32_t (&x)[NT]) {
  constexpr int kGroups = tile_k(BITS) / GROUP, kPairs = tile_k(BITS) / 32, kGroupPairs = GROUP / 32;
  constexpr float kOffset = Codes<BITS, T>::kOffset;
  const int lane = threadIdx.x & 31, g = lane >> 2;
  const uint32_t one = bits_of(both<T>(1.f));
  const uint32_t ones[4] = {one, one, one, one};
  ScaleRow<S, kGroups> low, high;
  low.load(tile + kCodeBytes + g * low.kBytes);
  high.load(tile + kCodeBytes + (g + 8) * high.kBytes);
  float c[NT][4], sum[NT][4];
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
        for (int i = 0; i < 4; ++i) c[n][i] = sum[n][i] = 0;
      uint32_t b[4];
      load_matrices(b, x[n] + pair * 64);
      mma_16x8x16<T>(c[n], a[0], b[0], b[1]);
      mma_16x8x16<T>(sum[n], ones, b[0], b[1]);
      mma_16x8x16<T>(c[n], a[1], b[2], b[3]);
      mma_16x8x16<T>(sum[n], ones, b[2], b[3]);
      if (pair % kGroupPairs != kGroupPairs - 1) continue;
      const int group = pair / kGroupPairs;
      const float low_bias = fmaf(-kOffset, low.scale(group), low.bias(group)), high_bias = fmaf(-kOffset, high.scale(group), high.bias(group));
      acc[n][0] = fmaf(low.scale(group), c[n][0], fmaf(low_bias, sum[n][0], acc[n][0]));
      acc[n][1] = fmaf(low.scale(group), c[n][1], fmaf(low_bias, sum[n][1], acc[n][1]));
      acc[n][2] = fmaf(high.scale(group), c[n][2], fmaf(high_bias, sum[n][2], acc[n][2]));
      acc[n][3] = fmaf(high.scale(group), c[n][3], fmaf(high_bias, sum[n][3], acc[n][3]));
    }
  }
}

/// Adds up what the warps of a strip hold and finishes it, or leaves it for the last part of k.
template <int NT>
__device__ __forceinline__ void add_warps(const LinearRowsParams& p, const float (&acc)[NT][4], float* reduce, int strip, int side) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int k_warps = kRowsWarps / p.row_warps, depth = warp / p.row_warps;
  constexpr int kDeposit = NT * 8 * kReduceColumn;
  float* const first = reduce + side * k_warps * kDeposit;
  float* const mine = first + depth * kDeposit;
  const auto barrier = [&] {
    if (k_warps == 1) __syncwarp();
    else named_barrier(1 + side, k_warps * 32);
  };
  barrier();  // the last strip's deposits are read
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) mine[(n * 8 + 2 * t + (i & 1)) * kReduceColumn + g + 8 * (i >> 1)] = acc[n][i];
  barrier();
  const bool fold = p.paired && p.splits == 1;
  const int shift = fold ? 3 : 4;
  for (int i = depth * 32 + lane; i < p.rows << shift; i += k_warps * 32) {
    const int m = i >> shift, r = i & ((1 << shift) - 1);
    const float* from = first + m * kReduceColumn + r;
    float v = 0, up = 0;
#pragma unroll 4
    for (int w = 0; w < k_warps; ++w) {
      v += from[w * kDeposit];
      if (fold) up += from[w * kDeposit + kStripRows / 2];
    }
    if (p.splits == 1) finish(p, strip, m, r, v, up);
    else p.partials[((static_cast<size_t>(blockIdx.y) * p.strips + strip) * p.rows + m) * kStripRows + r] = v;
  }
}

__device__ __forceinline__ void add_quad(float (&v)[4], const float* from) {
  const float4 q = __ldcg(reinterpret_cast<const float4*>(from));
  v[0] += q.x, v[1] += q.y, v[2] += q.z, v[3] += q.w;
}

/// The last block of a set of strips to arrive adds up the parts of k.
__device__ __forceinline__ void add_splits(const LinearRowsParams& p, int strip0, int strip1) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = draw_ticket(p.tickets + blockIdx.x) == static_cast<unsigned>(p.splits) - 1;
    if (last) p.tickets[blockIdx.x] = 0;
  }
  __syncthreads();
  if (!last) return;
  const int quads = p.rows * (p.paired ? 2 : 4);  // of a strip; a thread takes four weight rows at a time
  const size_t part = static_cast<size_t>(p.strips) * p.rows * kStripRows;
#pragma unroll 2
  for (int i = threadIdx.x; i < (strip1 - strip0) * quads; i += blockDim.x) {
    const int strip = strip0 + i / quads, m = i % quads / (p.paired ? 2 : 4), r = i % (p.paired ? 2 : 4) * 4;
    const float* from = p.partials + (static_cast<size_t>(strip) * p.rows + m) * kStripRows + r;
    float v[4] = {}, up[4] = {};
#pragma unroll 4
    for (int s = 0; s < p.splits; ++s) {
      add_quad(v, from + s * part);
      if (p.paired) add_quad(up, from + s * part + kStripRows / 2);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) finish(p, strip, m, r + j, v[j], up[j]);
  }
}

template <int BITS, int GROUP, class S, class T, int NT>
__global__ void __launch_bounds__(kRowsThreads, 1) linear_rows_kernel(const __grid_constant__ LinearRowsParams p) {
  constexpr int kTile = tile_bytes(BITS, GROUP, sizeof(S)), kTileK = tile_k(BITS);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ alignas(8) uint64_t barriers[kRowsWarps][kMostStages], x_here[kXPieces];
  const int warp = threadIdx.x >> 5, side = warp % p.row_warps, depth = warp / p.row_warps, k_warps = kRowsWarps / p.row_warps;
  const int strip0 = blockIdx.x * p.strips_per_block, strip1 = min(p.strips, strip0 + p.strips_per_block);
  const int tile0 = blockIdx.y * p.tiles_per_split, tile1 = min(p.tiles, tile0 + p.tiles_per_split);
  const RowsShared at = rows_shared(kTile, p.stages, kTileK, p.tiles_per_split, p.rows);
  if (threadIdx.x < kXPieces) barrier_init(shared_address(&x_here[threadIdx.x]), kRowsThreads);
  __syncthreads();
  const auto load_piece = [&](int i) {
    const int first = min(tile1, tile0 + (i << p.piece_shift)), last = min(tile1, first + (1 << p.piece_shift));
    if (first < last)
      load_x<T>(p, shared + at.x + (first - tile0) * kTileK * 2, at.x_row, first * kTileK, (last - first) * kTileK, shared_address(&x_here[i]));
  };
  load_piece(0);
  TileRing<kTile> ring(p.weights, shared + at.ring + warp * p.stages * kTile, barriers[warp], p.stages,
                       {strip0 + side, strip1, p.row_warps, tile0 + depth, tile0 + depth, tile1, k_warps, p.tiles});
  ring.start();
  for (int i = 1; i < kXPieces; ++i) load_piece(i);
  const XRows<NT> x(shared + at.x, at.x_row, p.rows);
  float* reduce = reinterpret_cast<float*>(shared + at.reduce);
  for (int strip = strip0 + side; strip < strip1; strip += p.row_warps) {
    float acc[NT][4] = {};
    for (int tile = tile0 + depth; tile < tile1; tile += k_warps) {
      uint32_t columns[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) columns[n] = x.at[n] + (tile - tile0) * kTileK * 2;
      const uint8_t* weights = ring.wait();
      barrier_wait(shared_address(&x_here[(tile - tile0) >> p.piece_shift]), 0);
      multiply_tile<BITS, GROUP, S, T, NT>(acc, weights, columns);
      ring.release();
    }
    add_warps<NT>(p, acc, reduce, strip, side);
  }
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
