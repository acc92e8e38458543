#include "ops/linear_run.h"

#include "base/thread_pool.h"
#include "kernels/cpu/norm_rope.h"
#include "ops/linear_grid.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

// The rows of x after the norm, in their own type.
const void* normed(const LinearRun& run) {
  constexpr size_t kTaskNumbers = 16384;  // below that a parallel region costs more than it saves
  const size_t in = run.jobs[0].matrix.in, step = std::max<size_t>(1, kTaskNumbers / in), row_bytes = in * size_of(run.type);
  auto* const to = reinterpret_cast<char*>(workspace((run.rows * row_bytes + 3) / 4, Workspace::rows));
  ThreadPool::instance().run(ceil_div(run.rows, step), [&](size_t task, size_t) {
    const size_t row = task * step;
    kernels::rms_norm_rows(run.type, static_cast<const char*>(run.x) + row * row_bytes, run.norm.type, run.norm.weight, run.norm.eps,
                           to + row * row_bytes, std::min(step, run.rows - row), in);
  });
  return to;
}

}  // namespace

void finish_block(const LinearRun& run, const Block& b, float* sums, float* second, size_t lds) {
  const LinearJob& job = run.jobs[b.job];
  if (job.bias) kernels::add_bias(sums, lds, b.rows, b.count, job.bias_type, at(job.bias, b.first, job.bias_type));
  if (second && run.jobs[1].bias)
    kernels::add_bias(second, lds, b.rows, b.count, run.jobs[1].bias_type, at(run.jobs[1].bias, b.first, run.jobs[1].bias_type));
  for (size_t r = 0; r < b.rows; ++r) {
    const size_t to = (b.row + r) * job.matrix.out + b.first;
    if (second) {
      kernels::finish_gated(run.type, run.activation, sums + r * lds, second + r * lds, at(job.out, to, run.type), b.count);
    } else {
      kernels::finish_sum(run.type, sums + r * lds, at(run.residual, to, run.type), at(job.out, to, run.type), b.count);
    }
  }
}

void run_linear(const LinearRun& run) {
  if (!run.norm.weight) return run_packed(run);
  LinearRun plain = run;
  plain.x = normed(run);
  plain.norm.weight = nullptr;
  run_packed(plain);
}

}  // namespace tersor::ops
