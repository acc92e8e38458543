// y = x W^T for many rows of x on Hopper's warpgroup tensor cores: weights are the first operand, dequantised in registers, x the
// second, from shared memory.
//
// A block makes 128 * BLOCKS weight rows by N rows of x. Its third warpgroup copies x in stages of 64 along k (rows of 128 bytes,
// 16-byte pieces swizzled by row); each warp of the first two streams the packed tiles of its own strips through its own ring, turns
// 32 codes a row at a time into x's type (scale * code + bias, rounded once) and issues the products; while these run it prepares the
// next ones. Parts of k meet in global memory; the last block to arrive adds them in order. Blocks stay and take one output tile after
// another: while results are written, x and weights of the next tile are already on their way.
#pragma once

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/linear_finish.cuh"
#include "kernels/cuda/linear_wgmma.cuh"

namespace tersor::kernels::cuda {

constexpr int kConsumers = 256, kTilesThreads = 384, kXStep = 64;

/// Shared memory of a block: stages of x, the warps' rings, staging rows of results. Offsets in bytes.
template <int BITS, int GROUP, class T, int BLOCKS, int N>
struct TilesShape {
  static constexpr int kTile = tile_bytes(BITS, GROUP, 2), kTileK = tile_k(BITS), kStage = BLOCKS * kTile;
  static constexpr int kXStage = N * kXStep * 2, kXStages = N == 128 ? 4 : 6;
  static constexpr int kRingStages = BLOCKS == 2 ? (kTile > 2304 ? 2 : 3) : 4;
  static constexpr int kOutRow = BLOCKS * 128 + 16;  // bytes of a row of x's 64 * BLOCKS results, and 16 to spare the banks
  static constexpr int kOutRows = N < 64 ? N : 64;   // rows of x staged at a time by a warpgroup
  static constexpr int kRing = kXStages * kXStage, kOut = kRing + 8 * kRingStages * kStage;
  static constexpr int kTotal = kOut + 2 * kOutRows * kOutRow + 1024;
  static_assert(kTotal <= 226 * 1024);
};

template <class S>
struct TilesBarriers {
  uint64_t full[S::kXStages], empty[S::kXStages], ring[8][S::kRingStages];
};

/// A part of the problem: an output tile and a part of k. A block takes parts blockIdx.x, blockIdx.x + gridDim.x and so on; those that
/// run together share rows of x and weights in the second cache.
struct TilesPart {
  int strip0, column0, tile0, tile1, output, split;  // output: number of the output tile
  __device__ __forceinline__ TilesPart(const LinearTilesParams& p, int part, int strips, int columns) {
    constexpr int kGroup = 8;  // row blocks that run side by side
    const int outputs = p.row_blocks * p.column_blocks, at = part % outputs;
    const int per_group = kGroup * p.column_blocks, group = at / per_group, inside = at % per_group;
    const int width = min(kGroup, p.row_blocks - group * kGroup);
    const int row_block = group * kGroup + inside % width, column_block = inside / width;
    split = part / outputs;
    strip0 = row_block * strips, column0 = column_block * columns, output = row_block * p.column_blocks + column_block;
    tile0 = split * p.tiles_per_split, tile1 = min(p.tiles, tile0 + p.tiles_per_split);
  }
};
__device__ __forceinline__ int parts_of(const LinearTilesParams& p) { return p.row_blocks * p.column_blocks * p.splits; }

/// The copying warpgroup.
template <class S, class T, int BLOCKS, int N>
__device__ __forceinline__ void copy_x(const LinearTilesParams& p, uint8_t* shared, TilesBarriers<S>& bars) {
  const int thread = threadIdx.x - kConsumers, row = thread >> 3, piece = thread & 7;
  const uint32_t to = shared_address(shared) + row * 128 + ((piece ^ (row & 7)) << 4);
  int stage = 0;
  uint32_t phase = 1;
  for (int i = blockIdx.x; i < parts_of(p); i += gridDim.x) {
    const TilesPart part(p, i, 8 * BLOCKS, N);
    const T* x = static_cast<const T*>(p.x) + (part.column0 + row) * p.x_stride + piece * 8;
    const int rows = p.rows - part.column0 - row;
    for (int k = part.tile0 * S::kTileK; k < part.tile1 * S::kTileK; k += kXStep) {
      barrier_wait(shared_address(&bars.empty[stage]), phase);
      const bool inside = k + piece * 8 < p.k;
#pragma unroll
      for (int j = 0; j < N / 16; ++j) {
        const bool valid = inside && 16 * j < rows;
        copy_16(to + stage * S::kXStage + j * 2048, valid ? x + 16 * j * p.x_stride + k : static_cast<const T*>(p.x), valid ? 16 : 0);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&bars.full[stage])) : "memory");
      if (++stage == S::kXStages) stage = 0, phase ^= 1;
    }
  }
  copies_commit();
  copies_wait<0>();
}

/// The packed tiles of one warp's BLOCKS strips, tile by tile, part after part.
template <class S, int BLOCKS>
struct StripRing {
  const LinearTilesParams& p;
  const uint8_t* from[BLOCKS];  // the next tile of each strip; null: no such strip
  uint8_t* ring;
  uint32_t barriers;
  int columns, part, left = 0, stage = 0;  // rows of x a tile; the next part to send for; tiles left of the present one
  uint32_t phase = 0;

  __device__ __forceinline__ StripRing(const LinearTilesParams& params, int columns_, uint8_t* ring_, uint64_t* bars)
      : p(params), ring(ring_), barriers(shared_address(bars)), columns(columns_), part(blockIdx.x) {
    for (int i = 0; i < S::kRingStages; ++i) fetch(i);
  }
  __device__ __forceinline__ bool next_part() {
    if (part >= parts_of(p)) return false;
    const int warp = threadIdx.x >> 5;
    const TilesPart next(p, part, 8 * BLOCKS, columns);
    part += gridDim.x, left = next.tile1 - next.tile0;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      const int strip = next.strip0 + (warp >> 2) * BLOCKS * 4 + (warp & 3) + b * 4;
      from[b] = strip < p.strips ? p.weights + (static_cast<size_t>(strip) * p.tiles + next.tile0) * S::kTile : nullptr;
    }
    return true;
  }
  __device__ __forceinline__ void fetch(int at) {
    if (left == 0 && !next_part()) return;
    --left;
    if ((threadIdx.x & 31) == 0) {
      int count = 0;
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) count += from[b] ? S::kTile : 0;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barriers + 8 * at), "r"(count) : "memory");
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
        if (from[b])
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(
                           shared_address(ring + at * S::kStage + b * S::kTile)),
                       "l"(from[b]), "r"(S::kTile), "r"(barriers + 8 * at)
                       : "memory");
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
      if (from[b]) from[b] += S::kTile;
  }
  __device__ __forceinline__ const uint8_t* wait() {
    barrier_wait(barriers + 8 * stage, phase);
    return ring + stage * S::kStage;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch(stage);
    if (++stage == S::kRingStages) stage = 0, phase ^= 1;
  }
};

/// The stages of x, in a consumer's turn.
struct XTurn {
  int stage = 0;
  uint32_t phase = 0;
};

/// The weights of 32 codes a row as fragments of two steps: scale * code + bias in T.
template <int BITS, int GROUP, class T>
__device__ __forceinline__ void weight_fragments(uint32_t (&a)[2][4], const uint8_t* tile, int pair,
                                                 const ScaleRow<T, tile_k(BITS) / GROUP>& low,
                                                 const ScaleRow<T, tile_k(BITS) / GROUP>& high) {
  const int lane = threadIdx.x & 31, group = pair * 32 / GROUP;
  if constexpr (BITS == 4) {
    const uint2 codes = *reinterpret_cast<const uint2*>(tile + pair / 2 * kUnitBytes + lane * 16 + pair % 2 * 8);
    whole_codes<4, T>(a[0], codes.x, 0);
    whole_codes<4, T>(a[1], codes.y, 0);
  } else {
    const uint4 codes = *reinterpret_cast<const uint4*>(tile + pair * kUnitBytes + lane * 16);
    whole_codes<8, T>(a[0], codes.x, codes.y);
    whole_codes<8, T>(a[1], codes.z, codes.w);
  }
  Pair<T> scale[2], bias[2];
  scale[0].x = scale[0].y = low.v[group][0], bias[0].x = bias[0].y = low.v[group][1];
  scale[1].x = scale[1].y = high.v[group][0], bias[1].x = bias[1].y = high.v[group][1];
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[step][i] = bits_of(__hfma2(pair_of<Pair<T>>(a[step][i]), scale[i & 1], bias[i & 1]));
}

/// The main loop of a consuming warp.
template <class S, int BITS, int GROUP, class T, int BLOCKS, int N>
__device__ __forceinline__ void multiply_strips(float (&acc)[BLOCKS][N / 2], const TilesPart& part, StripRing<S, BLOCKS>& ring, XTurn& turn,
                                                uint8_t* shared, TilesBarriers<S>& bars) {
  constexpr int kGroups = tile_k(BITS) / GROUP, kPairs = tile_k(BITS) / 32;
  const int lane = threadIdx.x & 31, g = lane >> 2;
  int before = -1;
  uint32_t a[2][BLOCKS][2][4];
  for (int tile = part.tile0; tile < part.tile1; ++tile) {
    const uint8_t* codes = ring.wait();
    ScaleRow<T, kGroups> low[BLOCKS], high[BLOCKS];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      low[b].load(codes + b * S::kTile + kCodeBytes + g * low[b].kBytes);
      high[b].load(codes + b * S::kTile + kCodeBytes + (g + 8) * high[b].kBytes);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) weight_fragments<BITS, GROUP, T>(a[pair & 1][b], codes + b * S::kTile, pair, low[b], high[b]);
      if (pair % 2 == 0) {
        barrier_wait(shared_address(&bars.full[turn.stage]), turn.phase);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      }
      const uint64_t x = wgmma_descriptor(shared_address(shared + turn.stage * S::kXStage)) + pair % 2 * 4;
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) Wgmma<T, N>::add(acc[b], a[pair & 1][b][step], x + step * 2);
      wgmma_commit();
      wgmma_wait<1>();
      if (pair % 2 == 0) {
        if (before >= 0 && lane == 0) barrier_arrive(shared_address(&bars.empty[before]));
      } else {
        before = turn.stage;
        if (++turn.stage == S::kXStages) turn.stage = 0, turn.phase ^= 1;
      }
    }
    ring.release();
  }
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive(shared_address(&bars.empty[before]));
}

/// Leaves a block's sums for the last part of k to arrive; true in the last block, whose acc then holds the whole sums.
template <int COUNT>
__device__ __forceinline__ bool add_parts(const LinearTilesParams& p, float* acc, const TilesPart& part) {
  __shared__ bool last;
  float* from = p.partials + static_cast<size_t>(part.output) * p.splits * COUNT * kConsumers + threadIdx.x;
  float* mine = from + static_cast<size_t>(part.split) * COUNT * kConsumers;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) mine[i * kConsumers] = acc[i];
  named_barrier(1, kConsumers);
  if (threadIdx.x == 0) {
    last = draw_ticket(p.tickets + part.output) == static_cast<unsigned>(p.splits) - 1;
    if (last) p.tickets[part.output] = 0;
  }
  named_barrier(1, kConsumers);
  if (!last) return false;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) acc[i] = 0;
  for (int s = 0; s < p.splits; ++s)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) acc[i] += __ldcg(from + (static_cast<size_t>(s) * COUNT + i) * kConsumers);
  return true;
}

/// A row's bias, or 0.
__device__ __forceinline__ float row_bias(const LinearTilesParams& p, const LinearOutput& out, const void* bias, int column) {
  return bias && column < out.columns ? load_float(p.y_type, bias, column) : 0.f;
}

/// Rows FIRST to FIRST + COUNT of x of one strip's results into the warpgroup's staging rows [row of x][weight row], as T.
template <class T, int N, int FIRST, int COUNT>
__device__ __forceinline__ void stage_strip(const LinearTilesParams& p, const float (&acc)[N / 2], const float (&bias)[2], uint8_t* to,
                                            int out_row) {
  // Of the four 8x8 matrices that one instruction stores, lane 8i + r gives the place of row r of matrix i.
  const int lane = threadIdx.x & 31, matrix = lane >> 3, r = lane & 7;
  const uint32_t place =
      shared_address(to) + (p.paired ? (matrix * 8 + r) * out_row : ((matrix >> 1) * 8 + r) * out_row + (matrix & 1) * 16);
  uint32_t v[4];
#pragma unroll
  for (int j = 0; j < COUNT / 8; ++j) {
    const float* sum = acc + FIRST / 2 + 4 * j;
    const float c[4] = {sum[0] + bias[0], sum[1] + bias[0], sum[2] + bias[1], sum[3] + bias[1]};
    Pair<T> pair;
    if (p.paired) {
      pair.x = from_float<T>(silu(c[0]) * c[2]), pair.y = from_float<T>(silu(c[1]) * c[3]);
      v[j & 3] = bits_of(pair);
    } else {
      pair.x = from_float<T>(c[0]), pair.y = from_float<T>(c[1]), v[2 * (j & 1)] = bits_of(pair);
      pair.x = from_float<T>(c[2]), pair.y = from_float<T>(c[3]), v[2 * (j & 1) + 1] = bits_of(pair);
    }
    const bool store = p.paired ? (j & 3) == 3 : (j & 1) == 1;
    if (store)
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(place + (p.paired ? j - 3 : j - 1) * 8 * out_row),
          "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
          : "memory");
  }
}

/// Where a thread's eight weight rows of every staged row go.
struct TilesColumn {
  const LinearOutput* out;
  int column, count;  // first column, how many of the eight there are
  __device__ __forceinline__ TilesColumn(const LinearTilesParams& p, int strip, int half) {
    out = &output_of(p, min(strip, p.strips - 1));
    column = (strip - out->first_strip) * (p.paired ? 8 : 16) + half * 8;
    count = strip < p.strips ? min(8, out->columns - column) : 0;
  }
};

/// Eight results to their place in row `row`, with the residual.
template <class T>
__device__ __forceinline__ void write_eight(const LinearTilesParams& p, const uint8_t* from, const TilesColumn& to, int row) {
  const long long at = row * to.out->stride + to.column;
  const T* v = reinterpret_cast<const T*>(from);
  const T* residual = static_cast<const T*>(to.out->residual);
  T* y = static_cast<T*>(to.out->y) + at;
  if (p.vectors && to.count == 8) {
    alignas(16) T sum[8];
    *reinterpret_cast<uint4*>(sum) = *reinterpret_cast<const uint4*>(v);
    if (residual) {
      alignas(16) T other[8];
      *reinterpret_cast<uint4*>(other) = *reinterpret_cast<const uint4*>(residual + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = from_float<T>(to_float(sum[i]) + to_float(other[i]));
    }
    *reinterpret_cast<uint4*>(y) = *reinterpret_cast<uint4*>(sum);
    return;
  }
  for (int i = 0; i < to.count; ++i) y[i] = residual ? from_float<T>(to_float(v[i]) + to_float(residual[at + i])) : v[i];
}

/// A warpgroup's results of rows FIRST on: staged, then written out by whole pieces of 16 bytes.
template <class S, class T, int BLOCKS, int N, int FIRST>
__device__ __forceinline__ void write_rows(const LinearTilesParams& p, const TilesPart& part, const float (&acc)[BLOCKS][N / 2],
                                           const float (&bias)[BLOCKS][2], uint8_t* staging) {
  const int warp = threadIdx.x >> 5, group = warp >> 2, thread = threadIdx.x & 127, strip_bytes = p.paired ? 16 : 32;
  uint8_t* mine = staging + group * S::kOutRows * S::kOutRow;
  named_barrier(2 + group, 128);  // the last rows are written out
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b)
    stage_strip<T, N, FIRST, S::kOutRows>(p, acc[b], bias[b], mine + (b * 4 + (warp & 3)) * strip_bytes, S::kOutRow);
  named_barrier(2 + group, 128);
  const int shift = (BLOCKS == 2 ? 4 : 3) - (p.paired ? 1 : 0), piece = thread & ((1 << shift) - 1);
  const TilesColumn to(p, part.strip0 + group * BLOCKS * 4 + (p.paired ? piece : piece >> 1), p.paired ? 0 : piece & 1);
  const int rows = min(S::kOutRows, p.rows - part.column0 - FIRST);
  for (int row = thread >> shift; row < rows; row += 128 >> shift)
    write_eight<T>(p, mine + row * S::kOutRow + piece * 16, to, part.column0 + FIRST + row);
}

template <class S, class T, int BLOCKS, int N>
__device__ __forceinline__ void write_tile(const LinearTilesParams& p, const TilesPart& part, const float (&acc)[BLOCKS][N / 2],
                                           uint8_t* staging) {
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2;
  float bias[BLOCKS][2];
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    const int strip = min(part.strip0 + (warp >> 2) * BLOCKS * 4 + b * 4 + (warp & 3), p.strips - 1);
    const LinearOutput& out = output_of(p, strip);
    const int column = (strip - out.first_strip) * (p.paired ? 8 : 16) + g;
    bias[b][0] = row_bias(p, out, out.bias, column);
    bias[b][1] = p.paired ? row_bias(p, out, out.bias_up, column) : row_bias(p, out, out.bias, column + 8);
  }
  write_rows<S, T, BLOCKS, N, 0>(p, part, acc, bias, staging);
  if constexpr (N > S::kOutRows) write_rows<S, T, BLOCKS, N, S::kOutRows>(p, part, acc, bias, staging);
}

template <int BITS, int GROUP, class T, int BLOCKS, int N>
__global__ void __launch_bounds__(kTilesThreads, 1) linear_tiles_kernel(const __grid_constant__ LinearTilesParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = TilesShape<BITS, GROUP, T, BLOCKS, N>;
  extern __shared__ uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - (shared_address(unaligned) & 1023)) % 1024;
  __shared__ TilesBarriers<S> bars;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kXStages; ++i) barrier_init(shared_address(&bars.full[i]), 128), barrier_init(shared_address(&bars.empty[i]), 8);
    for (int w = 0; w < 8; ++w)
      for (int i = 0; i < S::kRingStages; ++i) barrier_init(shared_address(&bars.ring[w][i]), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  let_next_start();
  wait_for_earlier();
  const int warp = threadIdx.x >> 5;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    copy_x<S, T, BLOCKS, N>(p, shared, bars);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    StripRing<S, BLOCKS> ring(p, N, shared + S::kRing + warp * S::kRingStages * S::kStage, bars.ring[warp]);
    XTurn turn;
    for (int i = blockIdx.x; i < parts_of(p); i += gridDim.x) {
      const TilesPart part(p, i, 8 * BLOCKS, N);
      float acc[BLOCKS][N / 2] = {};
      multiply_strips<S, BITS, GROUP, T, BLOCKS, N>(acc, part, ring, turn, shared, bars);
      if (p.splits > 1 && !add_parts<BLOCKS * N / 2>(p, &acc[0][0], part)) continue;
      write_tile<S, T, BLOCKS, N>(p, part, acc, shared + S::kOut);
    }
  }
#endif
}

/// The kernel of a shape and its shared memory; one definition a number of bits.
struct TilesFunction {
  const void* function = nullptr;
  int shared_bytes = 0;
};
TilesFunction linear_tiles_function_4(int group, Dtype type, int blocks, int columns);
TilesFunction linear_tiles_function_8(int group, Dtype type, int blocks, int columns);

template <int BITS, int GROUP, class T, int BLOCKS, int N>
TilesFunction tiles_function() {
  return {reinterpret_cast<const void*>(&linear_tiles_kernel<BITS, GROUP, T, BLOCKS, N>), TilesShape<BITS, GROUP, T, BLOCKS, N>::kTotal};
}
template <int BITS, int GROUP, class T>
TilesFunction tiles_function(int blocks, int columns) {
  if (blocks == 2 && columns == 128) return tiles_function<BITS, GROUP, T, 2, 128>();
  if (blocks == 2 && columns == 64) return tiles_function<BITS, GROUP, T, 2, 64>();
  if (blocks == 2 && columns == 32) return tiles_function<BITS, GROUP, T, 2, 32>();
  if (columns == 128) return tiles_function<BITS, GROUP, T, 1, 128>();
  if (columns == 64) return tiles_function<BITS, GROUP, T, 1, 64>();
  if (columns == 32) return tiles_function<BITS, GROUP, T, 1, 32>();
  return {};
}
template <int BITS, class T>
TilesFunction tiles_function(int group, int blocks, int columns) {
  if (group == 32) return tiles_function<BITS, 32, T>(blocks, columns);
  if (group == 64) return tiles_function<BITS, 64, T>(blocks, columns);
  return tiles_function<BITS, 128, T>(blocks, columns);
}
template <int BITS>
TilesFunction tiles_function(int group, Dtype type, int blocks, int columns) {
  if (type == Dtype::f16) return tiles_function<BITS, __half>(group, blocks, columns);
  if (type == Dtype::bf16) return tiles_function<BITS, __nv_bfloat16>(group, blocks, columns);
  return {};
}

}  // namespace tersor::kernels::cuda
