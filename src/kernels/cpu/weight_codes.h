// Codes, scales and biases of quantised weights in MLX's layout, read one at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tersor/base.h"

namespace tersor::kernels {

/// Hands code i of 32, which fill kBits words LSB first, to take(i, code). The loop has a constant length, so the compiler unrolls it with
/// constant shifts.
template <int kBits, class F>
void for_each_code(const uint32_t* words, F&& take) {
#pragma GCC unroll 32
  for (int code = 0; code < 32; ++code) {
    const int start = code * kBits, word = start / 32, shift = start % 32;
    uint32_t value = words[word] >> shift;
    if (shift + kBits > 32) value |= words[word + 1] << (32 - shift);
    take(code, value & ((1u << kBits) - 1));
  }
}

/// Element i of numbers of type `type`.
inline float number_at(Dtype type, const void* data, size_t i) {
  if (type == Dtype::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == Dtype::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

/// Twice the value of each e2m1 code: sign, two bits of exponent, one of mantissa.
inline constexpr int8_t kE2m1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The value of an e4m3 code: sign, four bits of exponent (bias 7), three of mantissa; no infinities.
constexpr float e4m3_value(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t bits = static_cast<uint32_t>(code & 0x80) << 24 | static_cast<uint32_t>(code & 0x7f) << 20;
  return std::bit_cast<float>(bits) * 0x1p120f;
}

/// 2^(code - 127); 255 is NaN.
inline float e8m0_value(uint8_t code) {
  const uint32_t rest = code == 0 || code == 255 ? 0x00400000u : 0u;
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23 | rest);
}

/// The value of a code of the microscaling formats.
inline float mx_value(Coding coding, uint8_t code) {
  return coding == Coding::mxfp4 ? 0.5f * static_cast<float>(kE2m1Twice[code]) : e4m3_value(code);
}

}  // namespace tersor::kernels
