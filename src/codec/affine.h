// The rules by which affine codes get their scale and bias.
#pragma once

#include <algorithm>
#include <cmath>

#include "codec/scalar.h"
#include "tersor/codec.h"

namespace tersor::codec {

struct Affine {
  float scale, bias;  // as stored

  Code code(float x, int bits) const {
    if (scale == 0) return 0;
    return static_cast<Code>(std::clamp(std::nearbyint((x - bias) / scale), 0.0f, static_cast<float>((1 << bits) - 1)));
  }
};

/// From the least and greatest number of a group. The edge of larger magnitude is the bias and zero falls on a code where the range
/// spans it (MLX's rule); codes are then chosen against the scale and bias as stored. A constant group has scale 0.
inline Affine affine_from_range(float lo, float hi, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  const bool low_edge = std::abs(lo) > std::abs(hi);
  const float edge = low_edge ? lo : hi;
  float scale = (hi - lo) / steps;
  if (!low_edge) scale = -scale;
  if (scale != 0) {
    const float zero_code = std::nearbyint(edge / scale);
    if (zero_code != 0 && std::abs(zero_code) <= steps) scale = edge / zero_code;
  }
  return {decode_scale(encode_scale(scale)), decode_scale(encode_scale(edge))};
}

/// The least number is the bias and the range is cut evenly (KIVI, arXiv 2402.02750). A constant group has scale 0.
inline Affine affine_of_extremes(float lo, float hi, int bits) {
  return {decode_scale(encode_scale((hi - lo) / static_cast<float>((1 << bits) - 1))), decode_scale(encode_scale(lo))};
}

inline Affine affine_by_rule(GroupRule rule, float lo, float hi, int bits) {
  return rule == GroupRule::minmax ? affine_of_extremes(lo, hi, bits) : affine_from_range(lo, hi, bits);
}

}  // namespace tersor::codec
