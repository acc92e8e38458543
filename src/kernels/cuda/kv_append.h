// Encoding new keys and values into the tiles of a cache (codec/fragment.h), in place, all heads and both sides in one launch.
#pragma once

#include "kernels/cuda/kv_format.h"
#include "kernels/cuda/launch.h"

namespace tersor::kernels::cuda {

inline constexpr int kMaxAppendJobs = 8;

/// Tokens [begin, begin + count) of the new rows go to slots [at, at + count) of a buffer, of keys or of values.
struct AppendJob {
  uint8_t* tiles = nullptr;                              // of batch 0, head 0; the tile's first byte, also for values
  unsigned long long batch_stride = 0, head_stride = 0;  // bytes
  unsigned tile_bytes = 0, side_offset = 0;              // of a tile, and from its start to this side
  int begin = 0, at = 0, count = 0;
  int first_block = 0, blocks = 0;  // of the launch; set by append_plan
  Code code = Code::full;
  bool keys = true;
};

/// Rotary embedding of the new keys before they are stored, and of the queries of the same tokens, which come out. See RopeParams.
struct AppendTurn {
  const float* inv_freq = nullptr;
  int pairs = 0;  // 0: keys are stored as they are
  int group = 0;  // query heads of a KV head
  long long position = 0;
  float scale = 1, eps = 0;
  const void* norms[2] = {nullptr, nullptr};  // of queries and keys
  Number norm_type = Number::f32;
  Rows queries;
  void* out = nullptr;  // numbers of the queries' type; dimensions contiguous; may be where the queries are
  long long out_batch_stride = 0, out_head_stride = 0, out_token_stride = 0;
};

struct AppendParams {
  Rows rows[2];  // keys, values
  RotationBits rotations[2];
  Levels levels[2];
  Number full_type[2] = {Number::f16, Number::f16};
  const float* centre = nullptr;  // [batch][heads][dim], subtracted from keys first (after they are turned), or null
  int heads = 0, sanitise = 1, jobs = 0;
  int tokens = 0, append_blocks = 0;  // of all rows, for the queries; set by append_plan
  AppendTurn turn;
  AppendJob job[kMaxAppendJobs];
};

bool append_supports(Code code, int dim);
/// Sets the jobs' blocks. launch.function is null when there is no kernel.
Launch append_plan(AppendParams& params, int dim, int batch);

}  // namespace tersor::kernels::cuda
