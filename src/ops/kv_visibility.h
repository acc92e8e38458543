// Which tokens a query row sees, and the masks of a call.
#pragma once

#include <mlx/array.h>

#include <span>

#include "ops/kv.h"
#include "ops/kv_rows.h"

namespace tersor::ops {

/// Tokens of a slab that one row sees: indices [lo, hi) within the slab, 0 <= lo <= hi <= count.
struct VisibleRange {
  int64_t lo, hi;
};

/// What the read's bounds, causality and the sliding window leave to a row at `position`.
VisibleRange visible_range(const KvRead& read, const AttendOptions& options, int64_t position);

/// One past the last position that the reads hold.
int64_t total_tokens(std::span<const KvRead> reads);

/// The mask as [B|1, Hq|1, L|1, S|1]. Throws std::invalid_argument when it does not broadcast to [B, Hq, L, tokens].
mx::array checked_mask(const mx::array& mask, const RowShape& q, int64_t tokens, mx::StreamOrDevice s);

}  // namespace tersor::ops
