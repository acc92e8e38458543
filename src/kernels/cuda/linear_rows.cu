// How linear_rows spreads a problem over the device, and its launch.
#include <algorithm>

#include "kernels/cuda/linear_few.cuh"
#include "kernels/cuda/linear_rows.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr int kDeepest = 4;                     // tiles of a warp's ring
constexpr int kSharedMost = 227 * 1024 - 1024;  // of a block, less what it holds statically

/// Shared memory of a block: the rings, then these; offsets in bytes.
struct RowsShared {
  int x, sums, reduce, total, x_row;  // x_row: bytes from row to row of x
};

RowsShared shared_of(const LinearProblem& problem, const LinearRowsPlan& plan) {
  const PackedLinear& w = problem.weight;
  const int tiles = ceil_div(tiles_of(w.bits, w.k), plan.splits);
  RowsShared s;
  s.x = kRowsWarps * plan.stages * tile_bytes(w);
  const int columns = tiles * tile_k(w.bits);
  if (problem.rows <= kFewRows) {
    s.x_row = columns + 16;  // rows start 16 bytes apart modulo the banks, for ldmatrix
    s.sums = s.x + 2 * problem.rows * s.x_row;
    s.reduce = s.sums + columns / w.group * kFewRows * static_cast<int>(sizeof(XGroup));
    s.total = s.reduce + kRowsWarps * kFewRows * kReduceColumn * 4;
  } else {
    const int most = problem.rows > 8 ? 16 : 8;
    s.x_row = columns * 2 + 16;
    s.sums = s.x + problem.rows * s.x_row;
    s.reduce = s.sums + columns / w.group * most * 4;
    s.total = s.reduce + kRowsWarps * most * kReduceColumn * 4;
  }
  return s;
}

/// Fewest blocks that the strips can be dealt to evenly, given `splits` parts of k.
int even_strips(const LinearProblem& problem, int splits) {
  const int columns = std::max(1, problem.multiprocessors / splits);
  return ceil_div(problem.weight.strips, columns);
}

/// Microseconds, roughly: bytes of the busiest block at the block's share of the memory rate, or its busiest warp; x from the second
/// cache; what merging costs. Constants were fitted to an H200.
double estimate(const LinearProblem& problem, const LinearRowsPlan& plan) {
  const PackedLinear& w = problem.weight;
  const int tiles = ceil_div(tiles_of(w.bits, w.k), plan.splits), k_warps = kRowsWarps / plan.row_warps;
  const double rounds = ceil_div(plan.strips, plan.row_warps);
  const double warp_tiles = rounds * ceil_div(tiles, k_warps), even_tiles = static_cast<double>(plan.strips) * tiles / kRowsWarps;
  const double kb_per_us = 4300e3 / problem.multiprocessors / 1e3;
  const double stream = (0.95 * even_tiles + 0.05 * warp_tiles) * kRowsWarps * tile_bytes(w) / 1e3 / kb_per_us;
  const double part = problem.rows * tiles * tile_k(w.bits);  // numbers of x: turned into integers, or copied
  const double x = problem.rows <= kFewRows ? part / 16 / kRowsThreads * 0.7 : part * 2 / 1e3 / 45;
  const double merge = plan.splits > 1 ? 1.3 + plan.strips * problem.rows * plan.splits * 64 / 1e3 / 100 : 0;
  return stream + 0.5 * x + merge + 0.35 * rounds;
}

const void* function_of(const LinearProblem& problem) {
  const PackedLinear& w = problem.weight;
  if (problem.rows <= kFewRows) return (w.bits == 4 ? linear_few_function_4 : linear_few_function_8)(w.group, w.scale_type);
  return (w.bits == 4 ? linear_rows_function_4 : linear_rows_function_8)(w.group, w.scale_type, problem.x_type, problem.rows);
}

}  // namespace

LinearRowsPlan linear_rows_plan(const LinearProblem& problem) {
  LinearRowsPlan best;
  double best_time = 1e30;
  const int tiles = tiles_of(problem.weight.bits, problem.weight.k);
  for (int splits = 1; splits <= std::min(tiles, 32); ++splits) {
    if (ceil_div(tiles, ceil_div(tiles, splits)) != splits) continue;  // parts would be empty
    for (int row_warps = 1; row_warps <= kRowsWarps; row_warps *= 2)
      for (const int stages : {problem.rows <= kFewRows ? kDeepest : 2, problem.rows <= kFewRows ? 3 : 2, 2}) {
        const LinearRowsPlan plan = {even_strips(problem, splits), splits, row_warps, stages};
        if (shared_of(problem, plan).total > kSharedMost) continue;
        const double time = estimate(problem, plan);
        if (time < best_time) best_time = time, best = plan;
      }
  }
  return best;
}

size_t linear_rows_workspace(const LinearProblem& problem, LinearRowsPlan plan) {
  if (plan.splits == 0) plan = linear_rows_plan(problem);
  if (plan.splits <= 1) return 0;
  return kTicketBytes + static_cast<size_t>(plan.splits) * problem.weight.strips * problem.rows * kStripRows * sizeof(float);
}

Launch linear_rows(const LinearProblem& problem, LinearRowsParams* params, LinearRowsPlan plan) {
  const PackedLinear& w = problem.weight;
  if (!linear_supported(w) || problem.rows < 1 || problem.rows > (problem.norm ? kLinearNormRows : kLinearRowsMost)) return {};
  if (plan.splits == 0) plan = linear_rows_plan(problem);
  if (plan.splits == 0) return {};
  const int tiles = tiles_of(w.bits, w.k), blocks = ceil_div(w.strips, plan.strips);
  if (shared_of(problem, plan).total > kSharedMost) return {};
  if (plan.splits > 1 && blocks > static_cast<int>(kTicketBytes / sizeof(unsigned))) return {};
  LinearRowsParams& p = *params;
  p = {};
  p.weights = static_cast<const uint8_t*>(problem.packed);
  p.x = problem.x;
  p.tickets = static_cast<unsigned*>(problem.workspace);
  p.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(problem.workspace) + kTicketBytes);
  std::copy(std::begin(problem.outputs), std::end(problem.outputs), std::begin(p.outputs));
  p.x_stride = problem.x_stride;
  p.output_count = problem.output_count, p.rows = problem.rows, p.k = w.k, p.strips = w.strips, p.tiles = tiles;
  p.strips_per_block = plan.strips, p.splits = plan.splits, p.tiles_per_split = ceil_div(tiles, plan.splits);
  while (p.tiles_per_split > kXPieces << p.piece_shift) ++p.piece_shift;
  while (1 << p.row_warps_log2 < plan.row_warps) ++p.row_warps_log2;
  p.stages = plan.stages, p.early = std::min(plan.stages, plan.early + 1);
  p.norm = problem.norm, p.norm_type = problem.norm_type, p.norm_eps = problem.norm_eps;
  const RowsShared shared = shared_of(problem, plan);
  p.x_at = shared.x, p.x_row = shared.x_row, p.sums_at = shared.sums, p.reduce_at = shared.reduce;
  p.x_type = problem.x_type, p.y_type = problem.y_type, p.paired = w.paired;
  p.bulk_x = problem.x_type != Dtype::f32 && reinterpret_cast<uintptr_t>(problem.x) % 16 == 0 && problem.x_stride % 8 == 0;
  return {function_of(problem),
          {static_cast<unsigned>(blocks), static_cast<unsigned>(plan.splits), 1},
          {kRowsWarps * 32, 1, 1},
          static_cast<unsigned>(shared_of(problem, plan).total)};
}

}  // namespace tersor::kernels::cuda
