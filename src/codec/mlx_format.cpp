#include "codec/mlx_format.h"

#include <algorithm>
#include <cmath>

namespace tersor::codec {
namespace {

float rounded(float x, Dtype dtype) {
  return dtype == Dtype::f16 ? half_to_float(float_to_half(x)) : dtype == Dtype::bf16 ? bfloat_to_float(float_to_bfloat(x)) : x;
}

}  // namespace

std::vector<uint32_t> mlx_pack(std::span<const Code> codes, int bits) {
  std::vector<uint32_t> words(codes.size() * bits / 32, 0);
  for (size_t i = 0; i < codes.size(); ++i)
    for (int bit = 0; bit < bits; ++bit) {
      const size_t at = i * bits + bit;
      words[at / 32] |= static_cast<uint32_t>(codes[i] >> bit & 1) << at % 32;
    }
  return words;
}

std::vector<Code> mlx_unpack(std::span<const uint32_t> words, int bits) {
  std::vector<Code> codes(words.size() * 32 / bits, 0);
  for (size_t i = 0; i < codes.size(); ++i)
    for (int bit = 0; bit < bits; ++bit) {
      const size_t at = i * bits + bit;
      codes[i] = static_cast<Code>(codes[i] | (words[at / 32] >> at % 32 & 1) << bit);
    }
  return codes;
}

MlxAffine mlx_affine(std::span<const float> x, int bits, int group, Dtype dtype) {
  constexpr float kLeastScale = 1e-7f;
  const float top = static_cast<float>((1 << bits) - 1);
  MlxAffine result;
  for (size_t begin = 0; begin < x.size(); begin += group) {
    const auto numbers = x.subspan(begin, group);
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    const bool low_edge = std::abs(*low) > std::abs(*high);
    float scale = std::max((*high - *low) / top, kLeastScale), bias = 0;
    if (!low_edge) scale = -scale;
    const float edge = low_edge ? *low : *high, zero_code = std::rint(edge / scale);
    if (zero_code != 0) scale = edge / zero_code, bias = edge;
    for (const float v : numbers) result.codes.push_back(static_cast<Code>(std::clamp(std::rint((v - bias) / scale), 0.0f, top)));
    result.scales.push_back(rounded(scale, dtype)), result.biases.push_back(rounded(bias, dtype));
  }
  return result;
}

std::vector<float> mlx_affine_decode(const MlxAffine& quantised, int group, Dtype dtype) {
  std::vector<float> x;
  for (size_t i = 0; i < quantised.codes.size(); ++i) {
    const float product = rounded(quantised.scales[i / group] * quantised.codes[i], dtype);
    x.push_back(rounded(product + quantised.biases[i / group], dtype));
  }
  return x;
}

}  // namespace tersor::codec
