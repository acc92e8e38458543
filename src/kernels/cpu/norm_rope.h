// RMS norm and rotary position embedding over rows. Nothing throws or allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersor/base.h"

namespace tersor::kernels {

/// out = x / sqrt(mean(x^2) + eps) * weight for `rows` contiguous rows of n numbers of type `type`; sums in float. out may be x.
void rms_norm_rows(Dtype type, const void* x, Dtype weight_type, const void* weight, float eps, void* out, size_t rows, size_t n);

/// Cosines and sines of tokens position .. position + tokens - 1, times `scale`: table[t] = {cos[pairs], sin[pairs]}.
/// Angles are formed and reduced in double, so that they hold at any position.
void rope_table(const float* inv_freq, size_t pairs, int64_t position, size_t tokens, float scale, float* table);

struct RopeHeads {
  Dtype type = Dtype::f32;         // of x and out
  size_t head_dim = 0, pairs = 0;  // dimensions i and i + pairs turn together, i < pairs; those from 2 * pairs on are copied
  const void* norm = nullptr;      // null, or the weight [head_dim] of an RMS norm of each head before it is turned
  Dtype norm_type = Dtype::f32;
  float eps = 0;
};
/// Turns `heads` consecutive heads of one token; cos_sin is the token's row of the table. Scratch: head_dim floats.
void rope_token(const RopeHeads& params, const void* x, const float* cos_sin, void* out, size_t heads, float* scratch);

}  // namespace tersor::kernels
