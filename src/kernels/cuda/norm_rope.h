// RMS norm (with the residual sum before it) and rotary position embedding on the GPU. Launch descriptions only (launch.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "tersor/base.h"

namespace tersor::kernels::cuda {

struct RmsNormParams {
  const void* x = nullptr;         // [rows, n] of `type`, contiguous
  const void* residual = nullptr;  // null, or [rows, n]: added to x first
  void* sum = nullptr;             // where x + residual goes (rounded to `type`; the norm takes the rounded sum); may be either input
  const void* weight = nullptr;    // [n] of weight_type
  void* out = nullptr;             // [rows, n]; may be x
  int rows = 0, n = 0;
  float eps = 0;
  Dtype type = Dtype::f16, weight_type = Dtype::f16;
};
/// out = s / sqrt(mean(s^2) + eps) * weight with s = x or x + residual, in float. n a multiple of 8, at most kRmsNormMost; all
/// pointers 16-byte aligned.
constexpr int kRmsNormMost = 32768;
Launch rms_norm(const RmsNormParams& params);

/// One tensor of heads, [tokens, heads * head_dim], token rows `stride` numbers apart.
struct RopeTensor {
  const void* x = nullptr;
  void* out = nullptr;         // may be x
  const void* norm = nullptr;  // null, or [head_dim] of norm_type: RMS norm of each head before it is turned
  long long x_stride = 0, out_stride = 0;
  int heads = 0;
};
struct RopeParams {
  RopeTensor tensors[2];               // queries and keys; heads 0: none
  const float* inv_freq = nullptr;     // [pairs]
  const int64_t* positions = nullptr;  // null, or a position for each token; else token t stands at position + t
  int64_t position = 0;
  int tokens = 0, tokens_per_row = 0;  // tokens_per_row > 0: positions start again at `position` after so many (batch rows)
  int head_dim = 0, pairs = 0;  // dimensions i and i + pairs turn together by position * inv_freq[i]; those from 2 * pairs on are copied
  float attention_scale = 1, eps = 0;
  Dtype type = Dtype::f16, norm_type = Dtype::f16;
  bool doubles = false;  // set by rope(): numbers can be read two at a time
};
/// Turns queries and keys of all tokens in one launch. head_dim a multiple of 2, at most 512.
Launch rope(RopeParams* params);

}  // namespace tersor::kernels::cuda
