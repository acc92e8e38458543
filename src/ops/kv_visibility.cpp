#include "ops/kv_visibility.h"

#include <mlx/ops.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace tersor::ops {

VisibleRange visible_range(const KvRead& read, const AttendOptions& options, int64_t position) {
  const KvSlab& slab = *read.slab;
  int64_t lo = slab.first, hi = slab.first + slab.count;
  if (read.lo_abs) lo = std::max(lo, *read.lo_abs);
  if (read.lo_rel) lo = std::max(lo, position + *read.lo_rel);
  if (read.hi_abs && read.hi_rel)
    hi = std::min(hi, std::max(*read.hi_abs, position + *read.hi_rel));
  else if (read.hi_abs)
    hi = std::min(hi, *read.hi_abs);
  else if (read.hi_rel)
    hi = std::min(hi, position + *read.hi_rel);
  if (options.causal) hi = std::min(hi, position + 1);
  if (options.sliding_window > 0) lo = std::max(lo, position - options.sliding_window + 1);
  lo = std::clamp<int64_t>(lo - slab.first, 0, slab.count);
  return {lo, std::max(lo, hi - slab.first)};
}

int64_t total_tokens(std::span<const KvRead> reads) {
  int64_t end = 0;
  for (const KvRead& read : reads) end = std::max(end, read.slab->first + read.slab->count);
  return end;
}

mx::array checked_mask(const mx::array& mask, const RowShape& q, int64_t tokens, mx::StreamOrDevice s) {
  const bool additive = mask.dtype() == mx::float32 || mask.dtype() == mx::float16 || mask.dtype() == mx::bfloat16;
  const int64_t wanted[4] = {q.batch, q.heads, q.tokens, tokens};
  bool fits = mask.ndim() <= 4 && mask.ndim() >= 1 && (additive || mask.dtype() == mx::bool_);
  for (size_t i = 0; fits && i < mask.ndim(); ++i) {
    const int size = mask.shape(static_cast<int>(i));
    fits = size == 1 || size == wanted[4 - mask.ndim() + i];
  }
  if (!fits) {
    std::ostringstream text;
    text << "[kv_attend] mask of shape " << mask.shape() << " and dtype " << mask.dtype() << " does not broadcast to [" << q.batch << ", "
         << q.heads << ", " << q.tokens << ", " << tokens << "]; use a bool or floating mask of that shape";
    throw std::invalid_argument(text.str());
  }
  mx::Shape shape(4 - mask.ndim(), 1);
  shape.insert(shape.end(), mask.shape().begin(), mask.shape().end());
  return mx::reshape(mask, shape, s);
}

}  // namespace tersor::ops
