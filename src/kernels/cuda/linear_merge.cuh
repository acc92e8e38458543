// How the warps of a block, and the blocks that share strips, add up their parts of k.
#pragma once

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/linear_finish.cuh"

namespace tersor::kernels::cuda {

constexpr int kRowsWarps = 16, kRowsThreads = kRowsWarps * 32;
constexpr int kReduceColumn = 20;  // floats from column to column of a deposit: 16 rows, and 4 to spare the banks

/// Adds up what the warps of a strip hold and finishes it, or leaves it for the last part of k.
/// `deposit` writes the warp's sums of 16 weight rows and COLUMNS rows of x, kReduceColumn floats from one row of x to the next.
template <int COLUMNS, class Deposit>
__device__ __forceinline__ void add_warps(const LinearRowsParams& p, float* reduce, int strip, int side, bool first_strip,
                                          Deposit deposit) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int k_warps = kRowsWarps >> p.row_warps_log2, depth = warp >> p.row_warps_log2;
  constexpr int kDeposit = COLUMNS * kReduceColumn;
  float* const first = reduce + side * k_warps * kDeposit;
  const auto barrier = [&] {
    if (k_warps == 1)
      __syncwarp();
    else
      named_barrier(1 + side, k_warps * 32);
  };
  if (!first_strip) barrier();  // the last strip's deposits are read
  deposit(first + depth * kDeposit);
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
    if (p.splits == 1)
      finish(p, strip, m, r, v, up);
    else
      p.partials[((static_cast<size_t>(blockIdx.y) * p.strips + strip) * p.rows + m) * kStripRows + r] = v;
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
#pragma unroll 1
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

}  // namespace tersor::kernels::cuda
