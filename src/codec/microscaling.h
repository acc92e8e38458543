// The small floats of microscaled formats (Open Compute Project, MX v1.0): e2m1 in 4 bits, e4m3 in 8, and their groups' scales, e8m0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tersor/codec.h"

namespace tersor::codec {

inline constexpr int kMxGroup = 32, kExponentBias = 127, kExponentMax = 254;  // 255 is NaN and never written

inline float decode_exponent(int byte) { return std::ldexp(1.0f, byte - kExponentBias); }
/// Of a power of two that decode_exponent made.
inline int encode_exponent(float scale) { return std::ilogb(scale) + kExponentBias; }

inline float decode_e2m1(int code) {
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}
/// Code 0x7f, which is NaN, is never written.
inline float decode_e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(8.0f + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

/// Nearest, saturating. Ties: to even codes, or (as MLX does it on CPUs) to the smaller magnitude, where a zero has no sign either.
inline int encode_e2m1(float x, bool ties_to_even) {
  constexpr float kBorders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  const float magnitude = std::abs(x);
  int code = 0;
  while (code < 7 && (magnitude > kBorders[code] || (ties_to_even && magnitude == kBorders[code] && code % 2 == 1))) ++code;
  const bool negative = std::signbit(x) && (ties_to_even || code > 0);
  return code | (negative ? 8 : 0);
}
/// Nearest, ties to even, saturating at 448.
inline int encode_e4m3(float x) {
  const float magnitude = std::min(std::abs(x), 448.0f);
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -6, -6);
  // In units of the last place; a carry into the next exponent is the next code too.
  const int code = (exponent + 6) * 8 + static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return code | (std::signbit(x) ? 0x80 : 0);
}

/// The scale's byte for a group's largest magnitude. mlx: the least power of two under which the group fits; ocp: that of the leading
/// digit, under which numbers may saturate. A group of zeros has scale 1.
inline int scale_exponent(float largest, bool wide, GroupRule rule) {
  if (largest == 0) return kExponentBias;
  if (rule == GroupRule::ocp) return std::clamp(std::ilogb(largest) - (wide ? 8 : 2) + kExponentBias, 0, kExponentMax);
  const float least = largest / (wide ? 448.0f : 6.0f);
  if (least == 0) return kExponentBias;
  int exponent = 0;
  const float mantissa = std::frexp(least, &exponent);  // in [0.5, 1)
  return std::clamp(exponent - (mantissa == 0.5f) + kExponentBias, 0, kExponentMax);
}

}  // namespace tersor::codec
