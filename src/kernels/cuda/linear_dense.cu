// y = x W^T for 1 to 16 rows of x and a dense 16-bit weight, as it lies in memory.
//
// Spread like linear_rows (linear_rows.cuh). A lane reads 16 bytes of weight rows g and g + 8 at a time: with the 32 columns of a step
// dealt to the lanes in eights, these are its fragments of two products, and 16 bytes of a row of x are the other operand's. The
// weights of the next 128 columns are on their way while the present ones are multiplied.
#include <algorithm>

#include "kernels/cuda/linear_norm.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr int kDenseK = 128, kDenseSteps = kDenseK / 32;  // columns of a tile, steps of 32

/// A tile of two weight rows in registers.
struct DenseTile {
  uint4 low[kDenseSteps], high[kDenseSteps];
  template <class T>
  __device__ __forceinline__ void load(const T* row0, const T* row1, int k, int k_end) {
#pragma unroll
    for (int i = 0; i < kDenseSteps; ++i) {
      const bool inside = k + i * 32 < k_end;
      low[i] = inside ? __ldcs(reinterpret_cast<const uint4*>(row0 + k + i * 32)) : uint4{};
      high[i] = inside ? __ldcs(reinterpret_cast<const uint4*>(row1 + k + i * 32)) : uint4{};
    }
  }
};

template <class T>
__device__ __forceinline__ void load_dense_x(const LinearRowsParams& p, uint8_t* to, int k0, int columns, const RowSquares& squares) {
  const int pieces = columns / 8;
  for (int i = threadIdx.x; i < p.rows * pieces; i += kRowsThreads) {
    const int row = p.rows == 1 ? 0 : i / pieces, k = k0 + (i - row * pieces) * 8;
    const bool inside = k < p.k;
    const long long at = row * p.x_stride + k;
    uint8_t* place = to + row * p.x_row + (k - k0) * 2;
    if (p.bulk_x && !p.norm) {
      copy_16(shared_address(place), static_cast<const T*>(p.x) + (inside ? at : 0), inside ? 16 : 0);
      continue;
    }
    float f[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) f[j] = inside ? load_float(p.x_type, p.x, at + j) : 0.f;
    if (p.norm) norm_numbers<8>(p, f, squares, row, k);
    alignas(16) T v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = from_float<T>(f[j]);
    *reinterpret_cast<uint4*>(place) = *reinterpret_cast<const uint4*>(v);
  }
  copies_commit();
}

template <class T, int NT>
__device__ __forceinline__ void multiply_dense(float (&acc)[NT][4], const DenseTile& w, const uint8_t* const (&x)[NT], int column) {
#pragma unroll
  for (int i = 0; i < kDenseSteps; ++i) {
    const uint32_t a0[4] = {w.low[i].x, w.high[i].x, w.low[i].y, w.high[i].y}, a1[4] = {w.low[i].z, w.high[i].z, w.low[i].w, w.high[i].w};
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 b = *reinterpret_cast<const uint4*>(x[n] + (column + i * 32) * 2);
      mma_16x8x16<T>(acc[n], a0, b.x, b.y);
      mma_16x8x16<T>(acc[n], a1, b.z, b.w);
    }
  }
}

/// Row r of a strip in the dense weights; rows that are not there repeat the last one.
template <class T>
__device__ __forceinline__ const T* dense_row(const LinearDenseParams& d, int strip, int r) {
  const LinearRowsParams& p = d.rows;
  const LinearOutput& out = output_of(p, strip);
  const int output = static_cast<int>(&out - p.outputs);
  if (p.paired) return static_cast<const T*>(d.dense[r >> 3]) + static_cast<long long>(min(strip * 8 + (r & 7), out.columns - 1)) * p.k;
  return static_cast<const T*>(d.dense[output]) + static_cast<long long>(min((strip - out.first_strip) * 16 + r, out.columns - 1)) * p.k;
}

template <class T, int NT>
__global__ void __launch_bounds__(kRowsThreads, 1) linear_dense_kernel(const __grid_constant__ LinearDenseParams d) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ RowSquares squares;
  const LinearRowsParams& p = d.rows;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int k_warps = kRowsWarps >> p.row_warps_log2, row_warps = 1 << p.row_warps_log2;
  const int side = warp & (row_warps - 1), depth = warp >> p.row_warps_log2;
  const int strip0 = blockIdx.x * p.strips_per_block, strip1 = min(p.strips, strip0 + p.strips_per_block);
  const int tile0 = blockIdx.y * p.tiles_per_split, tile1 = min(p.tiles, tile0 + p.tiles_per_split), k0 = tile0 * kDenseK;
  DenseTile now, next;
  const T *row0 = nullptr, *row1 = nullptr;
  const auto start = [&](int strip) {
    row0 = dense_row<T>(d, strip, g), row1 = dense_row<T>(d, strip, g + 8);
    if (tile0 + depth < tile1) now.load(row0, row1, (tile0 + depth) * kDenseK + t * 8, p.k);
  };
  if (strip0 + side < strip1) start(strip0 + side);
  wait_for_earlier();
  if (p.norm) {
    sum_squares(p, squares);
    __syncthreads();
  }
  load_dense_x<T>(p, shared, k0, (tile1 - tile0) * kDenseK, squares);
  copies_wait<0>();
  __syncthreads();
  const uint8_t* x[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) x[n] = shared + min(n * 8 + g, p.rows - 1) * p.x_row + t * 16;
  for (int strip = strip0 + side; strip < strip1; strip += row_warps) {
    float acc[NT][4] = {};
    for (int tile = tile0 + depth; tile < tile1; tile += k_warps) {
      next.load(row0, row1, (tile + k_warps) * kDenseK + t * 8, tile + k_warps < tile1 ? p.k : 0);
      multiply_dense<T, NT>(acc, now, x, (tile - tile0) * kDenseK);
      now = next;
    }
    if (strip + row_warps < strip1) start(strip + row_warps);
    add_warps<NT * 8>(p, reinterpret_cast<float*>(shared + p.reduce_at), strip, side, strip == strip0 + side, [&](float* to) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[(n * 8 + 2 * t + (i & 1)) * kReduceColumn + g + 8 * (i >> 1)] = acc[n][i];
    });
  }
  let_next_start();
  if (p.splits > 1) add_splits(p, strip0, strip1);
}

template <class T>
const void* dense_function(int rows) {
  if (rows > 8) return reinterpret_cast<const void*>(&linear_dense_kernel<T, 2>);
  return reinterpret_cast<const void*>(&linear_dense_kernel<T, 1>);
}

struct DensePlan {
  int strips = 0, per_block = 0, splits = 1, row_warps = 1, shared_bytes = 0;
};

int strips_of(const LinearProblem& problem) {
  int strips = 0;
  for (int i = 0; i < problem.output_count; ++i) strips += linear_strips(problem.outputs[i].columns, problem.weight.paired);
  return strips;
}

/// As few parts of k as shared memory and an even spread allow; then as many warps side by side as there are strips for.
DensePlan plan_of(const LinearProblem& problem) {
  DensePlan best;
  double best_cost = 1e30;
  const int strips = strips_of(problem), tiles = ceil_div(problem.weight.k, kDenseK), columns = problem.rows > 8 ? 16 : 8;
  for (int splits = 1; splits <= std::min(tiles, 16); ++splits) {
    const int part = ceil_div(tiles, splits);
    if (ceil_div(tiles, part) != splits) continue;
    const int x = problem.rows * (part * kDenseK * 2 + 64), shared = x + kRowsWarps * columns * kReduceColumn * 4;
    if (shared > 226 * 1024) continue;
    const int per_block = ceil_div(strips, std::max(1, problem.multiprocessors / splits));
    for (int row_warps = 1; row_warps <= kRowsWarps; row_warps *= 2) {
      const int rounds = ceil_div(per_block, row_warps), warp_tiles = rounds * ceil_div(part, kRowsWarps / row_warps);
      const double even = static_cast<double>(per_block) * part / kRowsWarps;
      // 4 KiB a tile and warp at a block's share of the memory rate; x; a round; a merge: microseconds, fitted to an H200.
      const double cost = (0.8 * even + 0.2 * warp_tiles) * kRowsWarps * 4.1 / 33 + x / 1e3 / 90 + 0.35 * rounds + (splits > 1 ? 3 : 0);
      if (cost < best_cost) best_cost = cost, best = {strips, per_block, splits, row_warps, shared};
    }
  }
  return best;
}

}  // namespace

size_t linear_dense_workspace(const LinearProblem& problem) {
  const DensePlan plan = plan_of(problem);
  if (plan.splits <= 1) return 0;
  return kTicketBytes + static_cast<size_t>(plan.splits) * plan.strips * problem.rows * kStripRows * sizeof(float);
}

Launch linear_dense(const LinearProblem& problem, const void* const* weights, LinearDenseParams* params) {
  const DensePlan plan = plan_of(problem);
  const Dtype type = problem.weight.scale_type;
  const int most_rows = problem.norm ? kLinearNormRows : kLinearRowsMost, step = problem.norm ? 16 : 8;
  if (type == Dtype::f32 || problem.rows < 1 || problem.rows > most_rows || problem.weight.k % step != 0 || plan.per_block == 0) return {};
  *params = {};
  LinearRowsParams& p = params->rows;
  p.x = problem.x;
  p.tickets = static_cast<unsigned*>(problem.workspace);
  p.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(problem.workspace) + kTicketBytes);
  std::copy(std::begin(problem.outputs), std::end(problem.outputs), std::begin(p.outputs));
  std::copy(weights, weights + (problem.weight.paired ? 2 : problem.output_count), params->dense);
  for (int i = 0, strip = 0; i < problem.output_count; ++i) {
    p.outputs[i].first_strip = strip;
    strip += linear_strips(problem.outputs[i].columns, problem.weight.paired);
  }
  p.x_stride = problem.x_stride;
  p.output_count = problem.output_count, p.rows = problem.rows, p.k = problem.weight.k, p.strips = plan.strips;
  p.tiles = ceil_div(p.k, kDenseK), p.strips_per_block = plan.per_block, p.splits = plan.splits;
  p.tiles_per_split = ceil_div(p.tiles, plan.splits);
  while (1 << p.row_warps_log2 < plan.row_warps) ++p.row_warps_log2;
  p.x_row = p.tiles_per_split * kDenseK * 2 + 64;  // rows start 64 bytes apart modulo the banks
  p.reduce_at = p.rows * p.x_row;
  p.x_type = problem.x_type, p.y_type = problem.y_type, p.paired = problem.weight.paired;
  p.norm = problem.norm, p.norm_type = problem.norm_type, p.norm_eps = problem.norm_eps;
  p.bulk_x = problem.x_type == type && reinterpret_cast<uintptr_t>(problem.x) % 16 == 0 && problem.x_stride % 8 == 0;
  const unsigned blocks = static_cast<unsigned>(ceil_div(plan.strips, plan.per_block));
  return {type == Dtype::f16 ? dense_function<__half>(problem.rows) : dense_function<__nv_bfloat16>(problem.rows),
          {blocks, static_cast<unsigned>(plan.splits), 1},
          {kRowsThreads, 1, 1},
          static_cast<unsigned>(plan.shared_bytes)};
}

}  // namespace tersor::kernels::cuda
