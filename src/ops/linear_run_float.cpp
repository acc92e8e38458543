#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/float_convert.h"
#include "ops/linear_grid.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

bool same_format(const kernels::LinearMatrix& a, const kernels::LinearMatrix& b) {
  return a.bits == b.bits && a.group == b.group && a.in == b.in;
}

// Weight rows of one task: a whole number of the kernel's row blocks, few enough that every worker gets several tasks.
size_t few_rows_width(const LinearRun& run, size_t workers) {
  size_t out = 0;
  for (const auto& job : run.jobs) out += job.out_features();
  if (run.kind == LinearKind::gated) out /= 2;
  const size_t width = ceil_div(ceil_div(out, workers * 6), 4) * 4;
  return std::clamp<size_t>(width, 16, 256);
}

void run_few_rows(const LinearRun& run) {
  ThreadPool& pool = ThreadPool::instance();
  const Grid grid{run, few_rows_width(run, pool.size()), run.rows};
  const size_t jobs = run.jobs.size(), tile = round16(run.rows * grid.width);
  std::vector<size_t> offsets(jobs);  // of each job's prepared x; jobs of one format share it
  size_t total = 0, scratch = 0;
  for (size_t j = 0; j < jobs; ++j) {
    const auto& matrix = run.jobs[j].matrix;
    scratch = std::max(scratch, round16(kernels::linear_few_rows_scratch(matrix)));
    size_t same = 0;
    while (!same_format(run.jobs[same].matrix, matrix)) ++same;
    offsets[j] = same < j ? offsets[same] : total;
    if (same == j) total += round16(kernels::linear_prepared_size(matrix, run.rows));
  }
  const size_t per_worker = scratch + 2 * tile;
  float* const prepared = workspace(total + pool.size() * per_worker);
  for (size_t j = 0, next = 0; j < jobs; ++j) {
    if (offsets[j] != next) continue;
    kernels::linear_prepare(run.jobs[j].matrix, run.type, run.x, run.rows, prepared + offsets[j]);
    next += round16(kernels::linear_prepared_size(run.jobs[j].matrix, run.rows));
  }
  pool.run(grid.tasks(), [&](size_t task, size_t worker) {
    const Block b = grid.block(task);
    float* const mine = prepared + total + worker * per_worker;
    float *const sums = mine + scratch, *const second = run.kind == LinearKind::gated ? sums + tile : nullptr;
    kernels::linear_few_rows(run.jobs[b.job].matrix, prepared + offsets[b.job], b.rows, b.first, b.count, sums, grid.width, mine);
    if (second) kernels::linear_few_rows(run.jobs[1].matrix, prepared + offsets[1], b.rows, b.first, b.count, second, grid.width, mine);
    finish_block(run, b, sums, second, grid.width);
  });
}

// x as floats: itself, or converted into `room`.
const float* float_rows(const LinearRun& run, float* room) {
  if (run.type == Dtype::f32) return static_cast<const float*>(run.x);
  const size_t in = run.jobs[0].matrix.in, step = 16;
  ThreadPool::instance().run(ceil_div(run.rows, step), [&](size_t task, size_t) {
    const size_t row = task * step, count = std::min(step, run.rows - row);
    kernels::to_float(run.type, at(run.x, row * in, run.type), room + row * in, count * in);
  });
  return room;
}

// x rows of one task: as many as keep them, their results and the panel in a second-level cache, but several tasks a worker.
size_t many_rows_height(const LinearRun& run, size_t columns, size_t workers) {
  constexpr size_t kMost = 256, kLeast = 48;
  const size_t blocks = std::max(ceil_div(run.rows, kMost), std::min(ceil_div(4 * workers, columns), run.rows / kLeast));
  return ceil_div(run.rows, std::max<size_t>(1, blocks));
}

void run_many_rows(const LinearRun& run) {
  ThreadPool& pool = ThreadPool::instance();
  Grid grid{run, kernels::kLinearPanel, run.rows};
  grid.height = many_rows_height(run, grid.all_columns(), pool.size());
  size_t scratch = 0;
  for (const auto& job : run.jobs) scratch = std::max(scratch, round16(kernels::linear_many_rows_scratch(job.matrix)));
  const size_t in = run.jobs[0].matrix.in, tile = grid.height * grid.width, per_worker = scratch + 2 * tile;
  const size_t converted = run.type == Dtype::f32 ? 0 : round16(run.rows * in);
  float* const room = workspace(converted + pool.size() * per_worker);
  const float* const x = float_rows(run, room);
  pool.run(grid.tasks(), [&](size_t task, size_t worker) {
    const Block b = grid.block(task);
    float* const panel = room + converted + worker * per_worker;
    float *const sums = panel + scratch, *const second = run.kind == LinearKind::gated ? sums + tile : nullptr;
    const float* rows = x + b.row * in;
    kernels::linear_many_rows(run.jobs[b.job].matrix, rows, in, b.rows, b.first, b.count, sums, grid.width, panel);
    if (second) kernels::linear_many_rows(run.jobs[1].matrix, rows, in, b.rows, b.first, b.count, second, grid.width, panel);
    finish_block(run, b, sums, second, grid.width);
  });
}

}  // namespace

void run_float(const LinearRun& run) { run.rows <= kernels::kLinearFewRows ? run_few_rows(run) : run_many_rows(run); }

}  // namespace tersor::ops
