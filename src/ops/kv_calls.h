// What a cache's graph nodes hold for the time they are evaluated, in memory of whichever device.
#pragma once

#include <memory>
#include <vector>

#include "ops/kv.h"
#include "ops/kv_rows.h"

namespace tersor::ops {

/// A write once the slab itself is an input array.
struct KvTarget {
  std::shared_ptr<const KvFormat> format;
  int64_t capacity, begin, count, at;
  bool keys, values;  // the sides that are written
};
/// Rotary embedding on the way into a cache.
struct KvTurn {
  RowShape queries;
  bool q_norm, k_norm;
  float scale, eps;
  int64_t position;
};
/// Inputs: k, v, the slabs; with a centre that (float32 [batch, heads, dim], contiguous); with a turn q, inv_freq, (q_norm), (k_norm);
/// perhaps a ticket. Outputs: the slabs, sharing memory with the inputs; with a turn the turned queries.
struct KvAppendCall {
  std::vector<KvTarget> targets;
  RowShape keys, values;
  std::optional<KvTurn> turn = std::nullopt;  // GPU only
  bool centred = false;
};

/// A read without its array. Unset bounds are far away.
struct KvSource {
  static constexpr int64_t kUnset = INT64_MIN / 4, kAll = INT64_MAX / 4;
  std::shared_ptr<const KvFormat> format;
  int64_t capacity, first, count;
  bool grows = false;
  int64_t lo_abs = kUnset, lo_rel = kUnset, hi_abs = kAll, hi_rel = kUnset;
};
/// Inputs: q, the slabs, then mask and sinks if any, perhaps an earlier ticket. Outputs: the result and the ticket.
struct KvAttendCall {
  std::vector<KvSource> sources;
  RowShape queries;
  int value_dim;
  float scale, soft_cap;
  bool exact, causal, has_mask, has_sinks;
  int64_t sliding_window, position;
};

}  // namespace tersor::ops
