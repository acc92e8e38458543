// Codes, scales and biases of quantised weights in MLX's layout, read one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace tersor::kernels
