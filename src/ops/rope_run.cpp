#include "ops/rope_run.h"

#include <algorithm>
#include <span>

#include "base/thread_pool.h"
#include "ops/kv_rows.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

// Numbers below which a parallel region costs more than it saves.
constexpr size_t kTaskNumbers = 8192;

}  // namespace

RopePart rope_part(Dtype type, size_t width, int head_dim, size_t pairs, const mx::array* norm, float eps) {
  const auto dim = static_cast<size_t>(head_dim);
  RopePart part{{type, dim, pairs, nullptr, Dtype::f32, eps}, nullptr, nullptr, width / dim};
  if (norm) part.heads.norm = norm->data<void>(), part.heads.norm_type = dtype_of(*norm, "rope");
  return part;
}

void run_rope(const RopeRun& run) {
  ThreadPool& pool = ThreadPool::instance();
  const size_t width = 2 * run.pairs, head_dim = run.parts[0].heads.head_dim, all = run.batch * run.tokens;
  float* const table = workspace(run.tokens * width + pool.size() * head_dim);
  float* const scratch = table + run.tokens * width;
  const std::span parts(run.parts, run.part_count);
  size_t heads = 0;
  for (const RopePart& part : parts) heads += part.count;
  const size_t step = std::max<size_t>(1, kTaskNumbers / (heads * head_dim));
  pool.run((run.tokens + step - 1) / step, [&](size_t task, size_t) {
    const size_t first = task * step, count = std::min(step, run.tokens - first);
    kernels::rope_table(run.inv_freq, run.pairs, run.position + static_cast<int64_t>(first), count, run.scale, table + first * width);
  });
  pool.run((all + step - 1) / step, [&](size_t task, size_t worker) {
    for (size_t t = task * step; t < std::min(all, task * step + step); ++t) {
      for (const RopePart& part : parts) {
        const size_t offset = t * part.count * head_dim * size_of(part.heads.type);
        kernels::rope_token(part.heads, part.from + offset, table + t % run.tokens * width, part.to + offset, part.count,
                            scratch + worker * head_dim);
      }
    }
  });
}

}  // namespace tersor::ops
