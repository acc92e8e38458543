// Random arrays and weights for the tests of graph nodes, with plain double references.
#pragma once

#include <mlx/mlx.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tersor/ops.h"

namespace tersor::ops {

constexpr double kFloatEpsilon = std::numeric_limits<float>::epsilon();
inline double unit_of(mx::Dtype dtype) { return dtype == mx::float32 ? kFloatEpsilon : dtype == mx::float16 ? 0x1p-10 : 0x1p-7; }

/// The array's numbers in row-major order, after evaluation.
inline std::vector<float> floats_of(const mx::array& x) {
  mx::array y = mx::contiguous(mx::astype(x, mx::float32, mx::Device::cpu), false, mx::Device::cpu);
  y.eval();
  return {y.data<float>(), y.data<float>() + y.size()};
}

inline mx::array random_array(std::mt19937& rng, mx::Shape shape, mx::Dtype dtype, float spread = 1.0f) {
  size_t n = 1;
  for (const int d : shape) n *= static_cast<size_t>(d);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  mx::array x = mx::astype(mx::array(values.data(), std::move(shape), mx::float32), dtype);
  x.eval();
  return x;
}

/// A random weight; bits 0: dense of type `dtype`, else codes with scales and biases of type `dtype`.
inline LinearWeight random_weight(std::mt19937& rng, int bits, int group, int out, int in, mx::Dtype dtype, bool bias = false) {
  const auto maybe_bias = [&]() -> std::optional<mx::array> {
    if (!bias) return std::nullopt;
    return random_array(rng, {out}, dtype);
  };
  if (!bits) return {random_array(rng, {out, in}, dtype, 0.3f), std::nullopt, std::nullopt, 0, 0, maybe_bias()};
  std::vector<uint32_t> words(static_cast<size_t>(out) * in * bits / 32);
  for (auto& w : words) w = static_cast<uint32_t>(rng());
  return {mx::array(words.data(), {out, in * bits / 32}, mx::uint32),
          random_array(rng, {out, in / group}, dtype, 0.05f),
          random_array(rng, {out, in / group}, dtype, 0.3f),
          bits,
          group,
          maybe_bias()};
}

/// A random weight of a microscaling format, scales around 2^-4.
inline LinearWeight random_mx_weight(std::mt19937& rng, Coding coding, int out, int in, bool bias = false) {
  const int bits = coding == Coding::mxfp4 ? 4 : 8;
  LinearWeight w = random_weight(rng, bits, 32, out, in, mx::float16, bias);
  std::vector<uint8_t> scales(static_cast<size_t>(out) * static_cast<size_t>(in) / 32);
  for (auto& s : scales) s = static_cast<uint8_t>(121 + rng() % 5);
  w.coding = coding;
  w.scales = mx::array(scales.data(), {out, in / 32}, mx::uint8);
  w.biases = std::nullopt;
  if (bits == 8) w.weight = mx::bitwise_and(w.weight, mx::array(0xF7F7F7F7u));  // no NaN: the top exponent's last mantissas stay out
  w.weight.eval();
  return w;
}

/// The weight as the CPU's kernels take it, by default multiplied as floats.
inline LinearWeight packed(const LinearWeight& w, Precision precision = Precision::exact) { return LinearPacker(precision).pack(w); }

/// What each weight is worth, and |scale| * code + |bias|: what rounding errors are relative to.
struct Worth {
  std::vector<double> value, terms, bias;
  explicit Worth(const LinearWeight& w) {
    const size_t out = static_cast<size_t>(w.out_features()), in = static_cast<size_t>(w.in_features());
    value.resize(out * in), terms.resize(out * in), bias.assign(out, 0.0);
    if (w.bias) {
      const auto b = floats_of(*w.bias);
      bias.assign(b.begin(), b.end());
    }
    if (!w.bits) {
      const auto dense = floats_of(w.weight);
      for (size_t i = 0; i < dense.size(); ++i) value[i] = dense[i], terms[i] = std::abs(dense[i]);
      return;
    }
    if (w.coding != Coding::affine) {
      microscaled(w);
      return;
    }
    const auto scales = floats_of(*w.scales), biases = floats_of(*w.biases);
    mx::array words = mx::contiguous(w.weight);
    words.eval();
    const uint32_t* packed = words.data<uint32_t>();
    const size_t bits = static_cast<size_t>(w.bits), group = static_cast<size_t>(w.group);
    for (size_t i = 0; i < value.size(); ++i) {
      uint32_t code = 0;
      for (size_t b = 0; b < bits; ++b) code |= (packed[(i * bits + b) / 32] >> ((i * bits + b) % 32) & 1) << b;
      value[i] = static_cast<double>(scales[i / group]) * code + biases[i / group];
      terms[i] = std::abs(static_cast<double>(scales[i / group])) * code + std::abs(static_cast<double>(biases[i / group]));
    }
  }

 private:
  // As MLX decodes it; the kernels' own tests hold the values against the formats' definition.
  void microscaled(const LinearWeight& w) {
    const auto dense = floats_of(
        mx::dequantize(w.weight, *w.scales, std::nullopt, w.group, w.bits, std::string(name_of(w.coding)), std::nullopt, mx::float32));
    for (size_t i = 0; i < dense.size(); ++i) value[i] = dense[i], terms[i] = std::abs(dense[i]);
  }
};

struct Product {
  std::vector<double> value, magnitude;  // [rows, out]; the magnitude is the sum of the terms' sizes
};

inline Product product(const mx::array& x, const LinearWeight& w) {
  const Worth worth(w);
  const auto values = floats_of(x);
  const size_t out = static_cast<size_t>(w.out_features()), in = static_cast<size_t>(w.in_features()), rows = values.size() / in;
  Product p{std::vector<double>(rows * out), std::vector<double>(rows * out)};
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < out; ++o) {
      double sum = worth.bias[o], magnitude = std::abs(sum);
      for (size_t k = 0; k < in; ++k) {
        sum += values[r * in + k] * worth.value[o * in + k];
        magnitude += std::abs(values[r * in + k]) * worth.terms[o * in + k];
      }
      p.value[r * out + o] = sum, p.magnitude[r * out + o] = magnitude;
    }
  }
  return p;
}

inline Choice fast(std::string op) { return {std::move(op), "", "test", true, ""}; }
inline Choice composed_choice(std::string op) { return {std::move(op), "", "mlx (composed)", false, ""}; }

}  // namespace tersor::ops
