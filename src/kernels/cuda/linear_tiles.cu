// How linear_tiles cuts a problem, and its launch.
#include <algorithm>

#include "kernels/cuda/linear_tiles.cuh"

namespace tersor::kernels::cuda {
namespace {

/// What a block takes for 1024 along k on an H200, fitted to measurements of one wave.
double microseconds_per_1024(const LinearTilesPlan& plan) {
  if (plan.blocks == 2) return plan.columns == 128 ? 12.3 : plan.columns == 64 ? 8.8 : 6.7;
  return plan.columns == 128 ? 7.1 : plan.columns == 64 ? 5.3 : 4.3;
}

/// Microseconds, roughly, on an H200: waves of blocks, each bound by the tensor cores (or by preparing weights for them) or by what it
/// reads, mostly from the second cache; then parts of k go out and come back.
double estimate(const LinearProblem& problem, const LinearTilesPlan& plan) {
  const PackedLinear& w = problem.weight;
  const int tiles = ceil_div(tiles_of(w.bits, w.k), plan.splits);
  const int blocks = ceil_div(w.strips, 8 * plan.blocks) * ceil_div(problem.rows, plan.columns) * plan.splits;
  const double k = static_cast<double>(tiles) * tile_k(w.bits), codes_kb = 8.0 * plan.blocks * tiles * tile_bytes(w) / 1e3;
  const double work = k / 1024 * microseconds_per_1024(plan);
  const double reads = std::max((plan.columns * k * 2 / 1e3 + codes_kb) / 43, codes_kb * std::min(blocks, problem.multiprocessors) / 4.2e3);
  const double part_kb = plan.splits > 1 ? 128.0 * plan.blocks * plan.columns * 4 / 1e3 : 0;
  const double merge = part_kb / 23 + plan.splits * part_kb / 120;
  return ceil_div(blocks, problem.multiprocessors) * (std::max(work, reads) + merge) + (plan.splits > 1 ? 5 : 4);
}

bool takes_vectors(const LinearProblem& problem) {
  for (int i = 0; i < problem.output_count; ++i) {
    const LinearOutput& out = problem.outputs[i];
    const auto address = reinterpret_cast<uintptr_t>(out.y) | reinterpret_cast<uintptr_t>(out.residual);
    if (address % 16 != 0 || out.stride % 8 != 0) return false;
  }
  return true;
}

size_t output_tiles(const LinearProblem& problem, const LinearTilesPlan& plan) {
  return static_cast<size_t>(ceil_div(problem.weight.strips, 8 * plan.blocks)) * ceil_div(problem.rows, plan.columns);
}

}  // namespace

LinearTilesPlan linear_tiles_plan(const LinearProblem& problem) {
  constexpr LinearTilesPlan kShapes[] = {{2, 128, 1}, {1, 128, 1}, {2, 64, 1}, {1, 64, 1}, {2, 32, 1}, {1, 32, 1}};
  LinearTilesPlan best;
  double best_time = 1e30;
  const int tiles = tiles_of(problem.weight.bits, problem.weight.k);
  for (LinearTilesPlan plan : kShapes)
    for (plan.splits = 1; plan.splits <= std::min(tiles, 16); ++plan.splits) {
      if (ceil_div(tiles, ceil_div(tiles, plan.splits)) != plan.splits) continue;  // parts would be empty
      if (plan.splits > 1 && output_tiles(problem, plan) > kTicketBytes / sizeof(unsigned)) continue;
      const double time = estimate(problem, plan);
      if (time < best_time) best_time = time, best = plan;
    }
  return best;
}

size_t linear_tiles_workspace(const LinearProblem& problem, LinearTilesPlan plan) {
  if (plan.splits == 0) plan = linear_tiles_plan(problem);
  if (plan.splits <= 1) return 0;
  return kTicketBytes + output_tiles(problem, plan) * plan.splits * 128 * plan.blocks * plan.columns * sizeof(float);
}

Launch linear_tiles(const LinearProblem& problem, LinearTilesParams* params, LinearTilesPlan plan) {
  const PackedLinear& w = problem.weight;
  const bool types = problem.x_type == problem.y_type && problem.x_type == w.scale_type && w.scale_type != Dtype::f32;
  if (!linear_supported(w) || !types || problem.rows < 1 || problem.compute_capability != 90) return {};
  if (plan.splits == 0) plan = linear_tiles_plan(problem);
  const auto function =
      (w.bits == 4 ? linear_tiles_function_4 : linear_tiles_function_8)(w.group, problem.x_type, plan.blocks, plan.columns);
  if (plan.splits > 1 && output_tiles(problem, plan) > kTicketBytes / sizeof(unsigned)) return {};
  LinearTilesParams& p = *params;
  p = {};
  p.weights = static_cast<const uint8_t*>(problem.packed);
  p.x = problem.x;
  p.tickets = static_cast<unsigned*>(problem.workspace);
  p.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(problem.workspace) + kTicketBytes);
  std::copy(std::begin(problem.outputs), std::end(problem.outputs), std::begin(p.outputs));
  p.x_stride = problem.x_stride;
  p.output_count = problem.output_count, p.rows = problem.rows, p.k = w.k, p.strips = w.strips, p.tiles = tiles_of(w.bits, w.k);
  p.row_blocks = ceil_div(w.strips, 8 * plan.blocks), p.column_blocks = ceil_div(problem.rows, plan.columns);
  p.splits = plan.splits, p.tiles_per_split = ceil_div(p.tiles, plan.splits);
  p.y_type = problem.y_type, p.paired = w.paired, p.vectors = takes_vectors(problem);
  return {function.function,
          {static_cast<unsigned>(std::min(problem.multiprocessors, p.row_blocks * p.column_blocks * plan.splits)), 1, 1},
          {kTilesThreads, 1, 1},
          static_cast<unsigned>(function.shared_bytes)};
}

}  // namespace tersor::kernels::cuda
