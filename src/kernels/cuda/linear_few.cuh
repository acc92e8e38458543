// y = x W^T for 1 to 4 rows of x, in whole numbers.
//
// Decoding codes to floats costs more instructions than a few rows of x need products, so codes stay bytes: they are the first operand
// of mma.m16n8k32 with 32-bit integer sums (4-bit codes times 8, where the packed layout has them: one mask for four codes). Each
// group of a row of x becomes 16-bit integers X with one scale: x ~ d * X, d = max|x| / 32639, X = 256 * high + low; the signed bytes
// high and low are two columns of the second operand. A group's sum of code * X is exact; scales and biases meet it in float. What is
// lost is the rounding of X, at most d / 2: with 16 bits, less than the rounding of a half or bfloat16 to its own precision near the
// group's largest number. A group with an infinity or NaN makes the result NaN.
#pragma once

#include "kernels/cuda/linear_merge.cuh"
#include "kernels/cuda/linear_norm.cuh"
#include "kernels/cuda/linear_ring.cuh"

namespace tersor::kernels::cuda {

constexpr int kFewRows = kLinearNormRows;
constexpr float kLargestX = 32639.f;  // 127 * 256 + 127
constexpr float kWhole = 12582912.f;  // 1.5 * 2^23: an integer added to its bits is the same number added to it
constexpr uint32_t kWholeBits = 0x4B400000u;

/// What a group of a row of x is besides its bytes: d (over 8 for 4-bit codes) and d * sum of X.
struct XGroup {
  float scale, sum;
};

__device__ __forceinline__ float max_nan(float a, float b) {  // NaN if either is
  float r;
  asm("max.NaN.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// The place in its step's 16 bytes of code k (of 16), in the order of the packed layout's registers.
template <int BITS>
__device__ constexpr int step_code(int byte) {
  const int t = byte / 4, i = byte % 4;
  return BITS == 4 ? 2 * t + (i & 1) * 8 + (i >> 1) : 2 * t + (i & 1) + (i >> 1) * 8;
}

/// Step `step` of row `row`, 16 numbers, into shared memory, with its group's scale: rows 2m and 2m + 1 hold the high and low bytes of
/// row m of x, 16 bytes a step; groups hold [group][kFewRows]. Lanes of a group call together; those without `wanted` write nothing.
template <int BITS, int GROUP>
__device__ __forceinline__ void quantize_sixteen(const LinearRowsParams& p, const float (&v)[16], uint8_t* to, XGroup* groups, int row,
                                                 int step, bool wanted) {
  float most = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) most = max_nan(most, fabsf(v[j]));
#pragma unroll
  for (int lanes = 1; lanes < GROUP / 16; lanes *= 2) most = max_nan(most, __shfl_xor_sync(~0u, most, lanes));
  const bool finite = most < INFINITY;
  const float inverse = most > 1e-33f && finite ? __fdividef(kLargestX, most) : 0.f;
  uint32_t high[4], low[4];
  int sum_high = 0, sum_low = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    uint32_t y[4];  // X + 128 in the low 16 bits: byte 1 is high, byte 0 is low + 128
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = __float_as_uint(fmaf(v[step_code<BITS>(4 * w + j)], inverse, kWhole + 128.f));
    const uint32_t a = __byte_perm(y[0], y[1], 0x5140), b = __byte_perm(y[2], y[3], 0x5140);  // low, low, high, high
    low[w] = __byte_perm(a, b, 0x5410) ^ 0x80808080u, high[w] = __byte_perm(a, b, 0x7632);
    sum_low = __dp4a(static_cast<int>(low[w]), 0x01010101, sum_low), sum_high = __dp4a(static_cast<int>(high[w]), 0x01010101, sum_high);
  }
  int sum = 256 * sum_high + sum_low;
#pragma unroll
  for (int lanes = 1; lanes < GROUP / 16; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (!wanted) return;
  uint8_t* at = to + 2 * row * p.x_row + step * 16;
  *reinterpret_cast<uint4*>(at) = make_uint4(high[0], high[1], high[2], high[3]);
  *reinterpret_cast<uint4*>(at + p.x_row) = make_uint4(low[0], low[1], low[2], low[3]);
  if (step % (GROUP / 16) != 0) return;
  const float d = finite ? most * (1.f / kLargestX) : NAN;
  groups[step / (GROUP / 16) * kFewRows + row] = {BITS == 4 ? d / 8 : d, inverse == 0.f && finite ? 0.f : d * static_cast<float>(sum)};
}

/// The block's part of x into shared memory.
template <int BITS, int GROUP>
__device__ __forceinline__ void quantize_x(const LinearRowsParams& p, uint8_t* to, XGroup* groups, int k0, int columns,
                                           const RowSquares& squares) {
  const int steps = columns / 16;  // a multiple of 8, so that lanes of a group stay together
#pragma unroll 1
  for (int first = threadIdx.x & ~31; first < p.rows * steps; first += kRowsThreads) {  // whole warps
    const int wanted = first + static_cast<int>(threadIdx.x & 31), i = min(wanted, p.rows * steps - 1);
    const int row = p.rows == 1 ? 0 : i / steps, step = i - row * steps;
    float v[16];
    load_sixteen(p, v, row, k0 + step * 16);
    if (p.norm) norm_numbers<16>(p, v, squares, row, k0 + step * 16);
    quantize_sixteen<BITS, GROUP>(p, v, to, groups, row, step, wanted == i);
  }
}

__device__ __forceinline__ void mma_16x8x32(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const uint32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

/// Two steps' codes as bytes: rows g and g + 8 of the first step, then of the second.
template <int BITS>
__device__ __forceinline__ void code_bytes(uint32_t (&a)[4], const uint4& codes, int pair) {
  if constexpr (BITS == 4) {
    const uint32_t first = pair ? codes.z : codes.x, second = pair ? codes.w : codes.y;
    a[0] = first & 0x78787878u, a[1] = __funnelshift_r(first, first, 4) & 0x78787878u;
    a[2] = second & 0x78787878u, a[3] = __funnelshift_r(second, second, 4) & 0x78787878u;
  } else {
    a[0] = __byte_perm(codes.x, codes.y, 0x5410), a[1] = __byte_perm(codes.x, codes.y, 0x7632);
    a[2] = __byte_perm(codes.z, codes.w, 0x5410), a[3] = __byte_perm(codes.z, codes.w, 0x7632);
  }
}

/// acc[i] += tile times row t of x, for weight rows g + 8i; x: the lane's address for ldmatrix at the tile's first column.
template <int BITS, int GROUP, class S>
__device__ __forceinline__ void multiply_few(float (&acc)[2], const uint8_t* tile, uint32_t x, const XGroup* groups) {
  constexpr int kGroups = tile_k(BITS) / GROUP, kPairs = tile_k(BITS) / 32, kGroupPairs = GROUP / 32, kUnitPairs = BITS == 4 ? 2 : 1;
  const int lane = threadIdx.x & 31, g = lane >> 2;
  ScaleRow<S, kGroups> rows[2];
  rows[0].load(tile + kCodeBytes + g * rows[0].kBytes);
  rows[1].load(tile + kCodeBytes + (g + 8) * rows[1].kBytes);
  const uint32_t zero[4] = {kWholeBits, kWholeBits, kWholeBits, kWholeBits};
  uint32_t c[4], b[4];
  uint4 codes;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {  // 32 along k
    if (pair % kUnitPairs == 0) codes = *reinterpret_cast<const uint4*>(tile + pair / kUnitPairs * kUnitBytes + lane * 16);
    if (pair % 2 == 0) load_matrices(b, x + pair * 32);
    uint32_t a[4];
    code_bytes<BITS>(a, codes, pair % kUnitPairs);
    if (pair % kGroupPairs == 0)
      mma_16x8x32(c, a, b[pair % 2 * 2], b[pair % 2 * 2 + 1], zero);
    else
      mma_16x8x32(c, a, b[pair % 2 * 2], b[pair % 2 * 2 + 1], c);
    if (pair % kGroupPairs != kGroupPairs - 1) continue;
    const int group = pair / kGroupPairs;
    const XGroup of_x = groups[group * kFewRows];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float high = __uint_as_float(c[2 * i]) - kWhole, low = __uint_as_float(c[2 * i + 1]) - kWhole;
      acc[i] = fmaf(rows[i].scale(group) * of_x.scale, fmaf(high, 256.f, low), fmaf(rows[i].bias(group), of_x.sum, acc[i]));
    }
  }
}

template <int BITS, int GROUP, class S>
__global__ void __launch_bounds__(kRowsThreads, 1) linear_few_kernel(const __grid_constant__ LinearRowsParams p) {
  constexpr int kTile = tile_bytes(BITS, GROUP, sizeof(S)), kTileK = tile_k(BITS);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ alignas(8) uint64_t barriers[kRowsWarps][kMostStages];
  __shared__ RowSquares squares;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, k_warps = kRowsWarps >> p.row_warps_log2, row_warps = 1 << p.row_warps_log2;
  const int side = warp & (row_warps - 1), depth = warp >> p.row_warps_log2;
  const int strip0 = blockIdx.x * p.strips_per_block, strip1 = min(p.strips, strip0 + p.strips_per_block);
  const int tile0 = blockIdx.y * p.tiles_per_split, tile1 = min(p.tiles, tile0 + p.tiles_per_split);
  PackedRing<kTile> ring(p.weights, shared + warp * p.stages * kTile, barriers[warp], p.stages,
                         {strip0 + side, strip1, row_warps, tile0 + depth, tile0 + depth, tile1, k_warps, p.tiles});
  // The code of a kernel's start comes slowly, from far away: weights are sent for before all else, but no more than leaves x its turn.
  ring.start(p.early);
  touch_lines(p);
  XGroup* const groups = reinterpret_cast<XGroup*>(shared + p.sums_at);
  const int k0 = tile0 * kTileK, columns = (tile1 - tile0) * kTileK;
  alignas(16) float weights[16] = {};
  if (norm_in_registers(p)) load_norm(p, weights, threadIdx.x * 16);
  wait_for_earlier();
  if (norm_in_registers(p)) {
    float v[16];
    load_sixteen(p, v, 0, threadIdx.x * 16);
    const float scale = row_scale(p, v, squares);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] *= scale * weights[i];
    const int step = static_cast<int>(threadIdx.x) - k0 / 16;
    if (threadIdx.x - threadIdx.x % 32 < (k0 + columns) / 16)  // whole warps
      quantize_sixteen<BITS, GROUP>(p, v, shared + p.x_at, groups, 0, step, step >= 0 && step < columns / 16);
  } else {
    if (p.norm) {
      sum_squares(p, squares);
      __syncthreads();
    }
    quantize_x<BITS, GROUP>(p, shared + p.x_at, groups, k0, columns, squares);
  }
  ring.fill(p.early);
  let_next_start();
  __syncthreads();
  // Lanes 8i to 8i + 7 give the rows of step i; columns that x does not have repeat its last one.
  const uint32_t x = shared_address(shared + p.x_at) + min(lane & 7, 2 * p.rows - 1) * p.x_row + (lane >> 3) * 16;
  const XGroup* of_lane = groups + min(lane & 3, p.rows - 1);
  for (int strip = strip0 + side; strip < strip1; strip += row_warps) {
    float acc[2] = {};
    for (int tile = tile0 + depth; tile < tile1; tile += k_warps) {
      const int from = tile - tile0;
      multiply_few<BITS, GROUP, S>(acc, ring.wait(), x + from * kTileK, of_lane + from * (kTileK / GROUP) * kFewRows);
      ring.release();
    }
    add_warps<kFewRows>(p, reinterpret_cast<float*>(shared + p.reduce_at), strip, side, strip == strip0 + side, [&](float* to) {
      to[(lane & 3) * kReduceColumn + (lane >> 2)] = acc[0];
      to[(lane & 3) * kReduceColumn + (lane >> 2) + 8] = acc[1];
    });
  }
  if (p.splits > 1) add_splits(p, strip0, strip1);
}

/// The kernel of a group and type of scales; one definition a number of bits, so that they compile side by side.
const void* linear_few_function_4(int group, Dtype scale);
const void* linear_few_function_8(int group, Dtype scale);

template <int BITS, class S>
const void* few_function(int group) {
  if (group == 32) return reinterpret_cast<const void*>(&linear_few_kernel<BITS, 32, S>);
  if (group == 64) return reinterpret_cast<const void*>(&linear_few_kernel<BITS, 64, S>);
  return reinterpret_cast<const void*>(&linear_few_kernel<BITS, 128, S>);
}
template <int BITS>
const void* few_function(int group, Dtype scale) {
  if (scale == Dtype::f16) return few_function<BITS, __half>(group);
  if (scale == Dtype::bf16) return few_function<BITS, __nv_bfloat16>(group);
  return few_function<BITS, float>(group);
}

}  // namespace tersor::kernels::cuda
