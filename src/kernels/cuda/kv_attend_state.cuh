// What one warp of the attention kernel keeps while it walks over tiles: running maxima, sums and outputs of its query vectors.
//
// A warp holds 4 * NT query vectors of one KV head. In the products' eight columns vector t has columns 2t and 2t + 1: the query is
// hi + lo / 254 in bytes (or hi + lo in 16-bit floats), so that both parts of a score, and of an output, lie in one lane (lane % 4 = t).
// Lane 4 g + t has outputs of dimensions 16 md + g and 16 md + g + 8.
//
// Outputs over codes are summed as integers: a token's weight times its value's scalar becomes two bytes, relative to the largest such
// product so far (its peak): high * 256 + low where scalars are positive (turboquant), high + low / 254 with signs otherwise (affine).
// `ref` is the peak's logarithm less kSpan, so that plain weights relative to it, whose sum normalises the result, stay within the range
// of floats whatever the scalar is. The sums are folded into floats, relative to `top`, only when a tile exceeds the peak, or lies so far
// below it that its products would lose their digits.
#pragma once

#include "kernels/cuda/kv_codes.cuh"

namespace tersor::kernels::cuda {

inline constexpr float kHidden = -1e30f;   // logit of a token that a row does not see
inline constexpr float kNothing = -1e28f;  // maximum of no tokens
inline constexpr float kLowParts = 254.0f;
inline constexpr float kSpan = 64;  // the binary logarithm of a scalar is between -40 and 24
// Makes products whole: 2^kSpan, 2^40 and what kScalarUnit takes away are in it.
inline constexpr float kSignedProduct = 127 * 0x1p63f, kPositiveProduct = 254 * 256 * 0x1p63f;

template <int D, int NT, Code V>
struct AttendState {
  static constexpr int kBlocks = D / 16;
  static constexpr int kGroups = V == Code::full ? 1 : scalar_groups(V, D);
  static constexpr bool kAffine = is_affine(V), kCoded = V != Code::full;
  static constexpr float kHalf = is_wide(V) ? 2.5f : 0.5f;  // turboquant: of levels beyond their integers, 1/2 or (1/2) + 4 (1/2)
  static constexpr float kRoom = 0.5f, kDrop = 4;           // of the peak above a tile that sets it, and below it of tiles that keep it

  float out[NT][kBlocks][2];
  int sums[NT][kCoded ? kBlocks : 1][4];
  float top[NT], total[NT];   // all that was folded
  float ref[NT], part[NT];    // of `sums`
  float offset[NT][kGroups];  // affine: weighted biases
  uint32_t products[NT];      // turboquant: the sum of products, each with kMagicBits on top

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      top[n] = ref[n] = kNothing, total[n] = part[n] = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) offset[n][g] = 0;
      products[n] = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) out[n][b][0] = out[n][b][1] = 0;
      if constexpr (kCoded) clear_sums(n);
    }
  }
  __device__ __forceinline__ void clear_sums(int n) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) sums[n][b][0] = sums[n][b][1] = sums[n][b][2] = sums[n][b][3] = 0;
  }

  /// Makes `top` the maximum of itself and `to`; returns what outputs are to be multiplied with.
  __device__ __forceinline__ float raise_top(int n, float to) {
    const float raised = fmaxf(top[n], to), shrink = exp2_fast(top[n] - raised);
    top[n] = raised;
    total[n] *= shrink;
    return shrink;
  }

  /// Adds the integer sums to the outputs. step2: twice the step of turboquant's levels.
  __device__ __forceinline__ void fold(int n, float step2) {
    const float shrink = raise_top(n, ref[n]), weight = exp2_fast(ref[n] - top[n]);
    const float scale = kAffine ? kScalarUnit / kSignedProduct * weight : step2 * (kScalarUnit / kPositiveProduct) * weight;
    float bias[kGroups];
    if constexpr (kAffine) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) bias[g] = sum_over_rows(offset[n][g]) * (kScalarUnit * weight), offset[n][g] = 0;
    } else {
      bias[0] = sum_over_rows(static_cast<float>(products[n])) * (kHalf * scale);
      products[n] = 0;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int g = kGroups == 1 ? 0 : b * 16 / kAffineGroup;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float high = static_cast<float>(sums[n][b][2 * half]), low = static_cast<float>(sums[n][b][2 * half + 1]);
        const float sum = kAffine ? fmaf(low, 1 / kLowParts, high) : fmaf(high, 256.0f, low);
        out[n][b][half] = fmaf(out[n][b][half], shrink, fmaf(sum, scale, bias[g]));
      }
    }
    total[n] = fmaf(part[n], weight, total[n]);
    part[n] = 0;
    clear_sums(n);
  }

  /// Folds when a tile whose largest product has this logarithm, less kSpan, does not fit the peak, and sets a new one.
  __device__ __forceinline__ void refer(int n, float largest, bool force, float step2) {
    const bool above = largest > ref[n], below = largest < ref[n] - kDrop && largest > top[n] - kSpan;
    if (!__any_sync(~0u, force || above || below)) return;
    fold(n, step2);
    if (above || below) ref[n] = largest + kRoom;
  }
};

}  // namespace tersor::kernels::cuda
