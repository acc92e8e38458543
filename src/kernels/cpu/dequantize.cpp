#include "kernels/cpu/dequantize.h"

#include "kernels/cpu/float_convert.h"

namespace tersor::kernels {
namespace {

// 32 codes fill kBits words; the loop has a constant length, so the compiler unrolls it with constant shifts.
template <int kBits>
void decode_unit(const uint32_t* words, float scale, float bias, float* out) {
#pragma GCC unroll 32
  for (int code = 0; code < 32; ++code) {
    const int start = code * kBits, word = start / 32, shift = start % 32;
    uint32_t value = words[word] >> shift;
    if (shift + kBits > 32) value |= words[word + 1] << (32 - shift);
    out[code] = scale * static_cast<float>(value & ((1u << kBits) - 1)) + bias;
  }
}

float number_at(Dtype type, const void* data, size_t i) {
  if (type == Dtype::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == Dtype::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <int kBits>
void decode_row(const LinearMatrix& m, size_t row, float* out) {
  const auto* words = static_cast<const uint32_t*>(m.weight) + row * (m.in * kBits / 32);
  const size_t groups = m.in / static_cast<size_t>(m.group);
  for (size_t g = 0; g < groups; ++g) {
    const float scale = number_at(m.scale_type, m.scales, row * groups + g);
    const float bias = number_at(m.bias_type, m.biases, row * groups + g);
    for (int unit = 0; unit < m.group; unit += 32, words += kBits, out += 32) decode_unit<kBits>(words, scale, bias, out);
  }
}

}  // namespace

void dequantize_row(const LinearMatrix& m, size_t row, float* out) {
  switch (m.bits) {
    case 2: return decode_row<2>(m, row, out);
    case 3: return decode_row<3>(m, row, out);
    case 4: return decode_row<4>(m, row, out);
    case 5: return decode_row<5>(m, row, out);
    case 6: return decode_row<6>(m, row, out);
    case 8: return decode_row<8>(m, row, out);
    default: break;
  }
  to_float(m.weight_type, static_cast<const char*>(m.weight) + row * m.in * size_of(m.weight_type), out, m.in);
}

}  // namespace tersor::kernels
