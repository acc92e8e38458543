// Rotary embedding over raw pointers on all threads.
#pragma once

#include <mlx/array.h>

#include "kernels/cpu/norm_rope.h"
#include "tersor/ops.h"

namespace tersor::ops {

/// Queries or keys: [batch * tokens, heads * head_dim] and how their heads turn.
struct RopePart {
  kernels::RopeHeads heads;
  const char* from;
  char* to;      // not `from`
  size_t count;  // heads of a token
};
/// `from` and `to` are the caller's to fill in. `norm`: null, or the heads' norm weight.
RopePart rope_part(Dtype type, size_t width, int head_dim, size_t pairs, const mx::array* norm, float eps);

/// Queries and keys of the same tokens, or one of them.
struct RopeRun {
  RopePart parts[2];
  size_t part_count = 2;
  const float* inv_freq;
  size_t pairs, batch, tokens;
  int64_t position;
  float scale;
};
void run_rope(const RopeRun& run);

/// Throws std::invalid_argument when shapes, dtypes or the position do not fit.
void check_rope(const mx::Shape& q, const mx::Shape& k, const RopeParams& params, int64_t position);

}  // namespace tersor::ops
