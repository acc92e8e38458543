#include <algorithm>

#include "base/thread_pool.h"
#include "ops/linear_grid.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

// Rows of x up to which the weights are what takes the time: a task then takes all rows of x and a longer run of weights.
constexpr size_t kFewRows = 32;

bool reads_streams(const LinearRun& run) { return run.rows <= kFewRows; }
// Then a task reads so much of a matrix: as little as costs nothing, so that threads can share out what is left at the end.
constexpr size_t kTaskBytes = 128 << 10;

// Weight rows of one task, whole panels. Streams: as many tasks for every worker.
size_t width_of(const LinearRun& run, size_t workers) {
  size_t panels = 0, bytes = 0;
  for (const auto& job : run.jobs) panels += job.matrix.panels(), bytes += job.matrix.bytes();
  if (run.kind == LinearKind::gated) panels /= 2;
  if (reads_streams(run)) return kernels::kPackedRows * ceil_div(panels, workers * ceil_div(bytes, workers * kTaskBytes));
  return kernels::kPackedRows * std::clamp<size_t>(panels / (workers * 4), 1, 4);
}

// x rows of one task: as many as stay in a second-level cache while panels pass by, but enough tasks for every worker.
size_t height_of(const LinearRun& run, size_t columns, size_t workers) {
  if (reads_streams(run)) return run.rows;
  constexpr size_t kCache = 384 << 10, kStep = 8;
  const size_t fit = std::max(kStep, kCache / kernels::packed_pass_bytes(run.jobs[0].matrix) / kStep * kStep);
  const size_t blocks = std::max(ceil_div(run.rows, fit), std::min(ceil_div(4 * workers, columns), ceil_div(run.rows, kStep)));
  return ceil_div(ceil_div(run.rows, blocks), kStep) * kStep;
}

// Prepares x for one matrix, on all threads when there are many rows.
void prepare(const LinearRun& run, const kernels::PackedMatrix& matrix, uint8_t* to) {
  const size_t step = 8, bytes = kernels::packed_prepared_bytes(matrix);
  ThreadPool::instance().run(ceil_div(run.rows, step), [&](size_t task, size_t) {
    const size_t row = task * step;
    kernels::packed_prepare(matrix, run.type, at(run.x, row * matrix.in, run.type), std::min(step, run.rows - row), to + row * bytes);
  });
}

}  // namespace

void run_packed(const LinearRun& run) {
  ThreadPool& pool = ThreadPool::instance();
  Grid grid{run, width_of(run, pool.size()), run.rows};
  grid.height = height_of(run, grid.all_columns(), pool.size());
  const size_t tile = grid.height * grid.width, per_worker = 2 * tile;
  std::vector<size_t> offsets;  // of each job's prepared x, in floats
  size_t total = 0;
  for (const auto& job : run.jobs) {
    size_t same = 0;
    while (!kernels::packed_alike(run.jobs[same].matrix, job.matrix)) ++same;
    offsets.push_back(same < offsets.size() ? offsets[same] : total);
    if (same + 1 == offsets.size()) total += run.rows * kernels::packed_prepared_bytes(job.matrix) / sizeof(float);
  }
  float* const prepared = workspace(total + pool.size() * per_worker);
  for (size_t j = 0, next = 0; j < run.jobs.size(); ++j) {
    if (offsets[j] != next) continue;
    prepare(run, run.jobs[j].matrix, reinterpret_cast<uint8_t*>(prepared + next));
    next += run.rows * kernels::packed_prepared_bytes(run.jobs[j].matrix) / sizeof(float);
  }
  const auto one = [&](size_t task, size_t worker) {
    const Block b = grid.block(task);
    float* const sums = prepared + total + worker * per_worker;
    const auto multiply = [&](size_t j, float* to) {
      const kernels::PackedMatrix& matrix = run.jobs[j].matrix;
      const auto* x = reinterpret_cast<const uint8_t*>(prepared + offsets[j]) + b.row * kernels::packed_prepared_bytes(matrix);
      kernels::packed_multiply(matrix, x, b.rows, b.first / kernels::kPackedRows, ceil_div(b.count, kernels::kPackedRows), to, grid.width);
    };
    multiply(b.job, sums);
    float* const second = run.kind == LinearKind::gated ? sums + tile : nullptr;
    if (second) multiply(1, second);
    finish_block(run, b, sums, second, grid.width);
  };
  reads_streams(run) ? pool.run_streams(grid.tasks(), one) : pool.run(grid.tasks(), one);
}

}  // namespace tersor::ops
