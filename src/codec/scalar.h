// The 16-bit floats that scales, biases and norms are stored in.
//
// Half precision loses its digits below 6e-5 (keys and values of magnitude 1e-6 do occur) and bfloat16 has too few of them.
// These formats spend six bits on the exponent: 2^-40 ... 2^24, a zero, no infinities and no NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace tersor::codec {

inline constexpr uint32_t kScalarExponentShift = (127u - 40u) << 23;  // from our exponent bias to float's
inline constexpr float kScalarMax = 0x1.ff8p+23f;                     // largest magnitude that both formats hold
/// Inputs are clamped to this magnitude before encoding (half precision's range), NaN becomes 0.
inline constexpr float kInputMax = 65504.0f;

/// Norms: no sign, 6 exponent bits, 10 mantissa bits: relative error at most 2^-11.
constexpr float decode_norm(uint16_t bits) {
  return bits == 0 ? 0.0f : std::bit_cast<float>((static_cast<uint32_t>(bits) << 13) + kScalarExponentShift);
}
constexpr uint16_t encode_norm(float value) {
  if (!(value > 0x1p-40f)) return 0;
  if (value > kScalarMax) value = kScalarMax;
  const uint32_t bits = std::bit_cast<uint32_t>(value) - kScalarExponentShift;
  return static_cast<uint16_t>((bits + 0xfffu + ((bits >> 13) & 1u)) >> 13);
}

/// Scales and biases: sign, 6 exponent bits, 9 mantissa bits: relative error at most 2^-10.
constexpr float decode_scale(uint16_t bits) {
  const uint32_t rest = bits & 0x7fffu;
  return rest == 0 ? 0.0f : std::bit_cast<float>((static_cast<uint32_t>(bits & 0x8000u) << 16) | ((rest << 14) + kScalarExponentShift));
}
constexpr uint16_t encode_scale(float value) {
  const bool negative = value < 0;
  float magnitude = negative ? -value : value;
  if (!(magnitude > 0x1p-40f)) return 0;
  if (magnitude > kScalarMax) magnitude = kScalarMax;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude) - kScalarExponentShift;
  return static_cast<uint16_t>((negative ? 0x8000u : 0u) | ((bits + 0x1fffu + ((bits >> 14) & 1u)) >> 14));
}

}  // namespace tersor::codec
