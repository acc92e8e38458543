// Decode attention over tiles of codes (codec/fragment.h): one launch, split over tokens, merged by the last block to arrive.
#pragma once

#include <cstddef>

#include "kernels/cuda/kv_format.h"
#include "kernels/cuda/launch.h"

namespace tersor::kernels::cuda {

/// Few, because they are part of every launch's parameters.
inline constexpr int kMaxSegments = 8;

/// Tiles that lie in one buffer. A row at position p sees the token at position x when
/// max(lo_abs, p + lo_rel) <= x < min(max(hi_abs, p + hi_rel), end), besides causality, sliding window and mask.
struct AttendSegment {
  const uint8_t* tiles = nullptr;                        // of batch 0, head 0
  unsigned long long batch_stride = 0, head_stride = 0;  // bytes
  int full = 0;                                          // 16-bit numbers instead of codes
  // Set by the plan: tiles that some row sees, the number of the first among all visited tiles, tiles that every row sees whole.
  int visit_begin = 0, visit_end = 0, ordinal = 0;
  int clear_begin = 0, clear_end = 0;
  int first = 0, end = 0;  // positions of the buffer's first token and past its last
  int lo_abs = 0, lo_rel = 0, hi_abs = 0, hi_rel = 0;
};

struct AttendParams {
  int batch = 0, kv_heads = 0, group = 0, rows = 0;  // group: query heads of a KV head
  int position = 0;                                  // of row 0
  int causal = 1, sliding_window = 0;
  float scale = 1, soft_cap = 0;
  int segment_count = 0;
  // Set by the plan: of a share of the tiles (the first longer_shares have one more), sets of vectors, whether a segment is full.
  int tiles = 0, splits = 1, share = 0, longer_shares = 0, sets = 1, any_full = 0;
  Number full_type = Number::f16;
  Rows queries;
  Levels key_levels, value_levels;
  RotationBits key_rotation, value_rotation;
  void* out = nullptr;  // numbers of the queries' type
  long long out_batch_stride = 0, out_head_stride = 0, out_token_stride = 0;
  float* partials = nullptr;      // AttendPlan::partial_floats
  unsigned* tickets = nullptr;    // AttendPlan::tickets, zero before the call and after it
  unsigned char* done = nullptr;  // a byte that is written, or null
  const float* sinks = nullptr;   // [heads] learned logits, or null
  const float* mask = nullptr;    // [batch][heads][rows][positions], added to logits, or null; strides may be zero
  long long mask_strides[4] = {0, 0, 0, 0};
  AttendSegment segments[kMaxSegments];
};

/// Which kernel, and how the work is cut.
struct AttendPlan {
  Launch launch;
  size_t partial_floats = 0, tickets = 0;  // what the caller provides
};

bool attend_supports(Code keys, Code values, int dim);
/// Sets what the plan sets in `params`. Bounds and positions must be below 2^30 in magnitude. launch.function is null when there is no
/// kernel. `processors`: of the device.
AttendPlan attend_plan(AttendParams& params, Code keys, Code values, int dim, int processors);
/// Another number of splits, or another kernel (kv_attend_variants.h), than the plan's: for tests and measurements.
void attend_split(AttendParams& params, AttendPlan& plan, const struct AttendVariant& variant, int dim, int splits);

}  // namespace tersor::kernels::cuda
