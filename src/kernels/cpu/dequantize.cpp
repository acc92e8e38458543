#include "kernels/cpu/dequantize.h"

#include "kernels/cpu/float_convert.h"
#include "kernels/cpu/weight_codes.h"

namespace tersor::kernels {
namespace {

template <int kBits>
void decode_row(const LinearMatrix& m, size_t row, float* out) {
  const auto* words = static_cast<const uint32_t*>(m.weight) + row * (m.in * kBits / 32);
  const size_t groups = m.in / static_cast<size_t>(m.group);
  for (size_t g = 0; g < groups; ++g) {
    const float scale = number_at(m.scale_type, m.scales, row * groups + g);
    const float bias = number_at(m.bias_type, m.biases, row * groups + g);
    for (int unit = 0; unit < m.group; unit += 32, words += kBits, out += 32)
      for_each_code<kBits>(words, [&](int i, uint32_t code) { out[i] = scale * static_cast<float>(code) + bias; });
  }
}

template <int kBits>
void decode_mx_row(const LinearMatrix& m, size_t row, float* out) {
  const auto* words = static_cast<const uint32_t*>(m.weight) + row * (m.in * kBits / 32);
  const auto* scales = static_cast<const uint8_t*>(m.scales) + row * (m.in / 32);
  for (size_t g = 0; g < m.in / 32; ++g, words += kBits, out += 32) {
    const float scale = e8m0_value(scales[g]);
    for_each_code<kBits>(words, [&](int i, uint32_t code) { out[i] = scale * mx_value(m.coding, static_cast<uint8_t>(code)); });
  }
}

}  // namespace

void dequantize_row(const LinearMatrix& m, size_t row, float* out) {
  if (m.coding == Coding::mxfp4) return decode_mx_row<4>(m, row, out);
  if (m.coding == Coding::mxfp8) return decode_mx_row<8>(m, row, out);
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
