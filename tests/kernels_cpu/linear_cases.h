// Weight matrices with known values for the tests of linear-layer kernels, and a fixture that runs every SIMD target.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/float_convert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/simd_target.h"

namespace tersor::kernels {

inline constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
inline constexpr Dtype kTypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

// Numbers of one storage type; exactly as many bytes as there are numbers, so that the address sanitizer sees every overrun.
struct Numbers {
  Dtype type;
  std::vector<float> values;  // as they are after rounding to the type
  std::unique_ptr<char[]> bytes;
  Numbers(Dtype t, std::vector<float> v) : type(t), values(std::move(v)), bytes(new char[values.size() * size_of(t)]) {
    from_float(t, values.data(), bytes.get(), values.size());
    to_float(t, bytes.get(), values.data(), values.size());
  }
};

struct Aligned {
  explicit Aligned(size_t n) : memory(static_cast<float*>(::operator new[](n * sizeof(float), std::align_val_t{64}))) {}
  ~Aligned() { ::operator delete[](memory, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  float* memory;
};

inline std::vector<float> random_floats(std::mt19937& rng, size_t n, float spread, float mean = 0) {
  std::normal_distribution<float> normal(mean, spread);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

// What a code of the microscaling formats is worth, from their definition.
inline double mx_worth(Coding coding, unsigned code) {
  const int mantissa_bits = coding == Coding::mxfp4 ? 1 : 3, bias = coding == Coding::mxfp4 ? 1 : 7;
  const unsigned sign = code >> (coding == Coding::mxfp4 ? 3 : 7), rest = code & (coding == Coding::mxfp4 ? 7u : 127u);
  const int exponent = static_cast<int>(rest >> mantissa_bits), mantissa = static_cast<int>(rest & ((1u << mantissa_bits) - 1));
  const double value = exponent ? std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                                : std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign ? -value : value;
}

// A weight matrix, its codes packed one bit at a time, and what each weight is worth in double.
struct Weights {
  LinearMatrix matrix;
  std::vector<uint32_t> words;
  std::unique_ptr<Numbers> dense, scales, biases;
  std::vector<uint8_t> exponents;    // scales of the microscaling formats
  std::vector<double> worth, terms;  // terms: |scale| * code + |bias|, what a rounding error is relative to

  Weights(int bits, int group, size_t out, size_t in, Dtype type, unsigned seed) {
    std::mt19937 rng(seed);
    matrix.bits = bits, matrix.group = group, matrix.out = out, matrix.in = in;
    worth.resize(out * in), terms.resize(out * in);
    bits ? fill_codes(rng, type) : fill_dense(rng, type);
  }
  // Of a microscaling format, with exponents from `low` to `high`.
  Weights(Coding coding, size_t out, size_t in, unsigned seed, unsigned low = 120, unsigned high = 128) {
    std::mt19937 rng(seed);
    matrix.coding = coding, matrix.bits = coding == Coding::mxfp4 ? 4 : 8, matrix.group = 32, matrix.out = out, matrix.in = in;
    worth.resize(out * in), terms.resize(out * in), exponents.resize(out * in / 32);
    const unsigned bits = static_cast<unsigned>(matrix.bits), mask = (1u << bits) - 1;
    words.resize(worth.size() * bits / 32);
    for (auto& e : exponents) e = static_cast<uint8_t>(low + rng() % (high - low + 1));
    for (size_t i = 0; i < worth.size(); ++i) {
      unsigned code = rng() & mask;
      if (bits == 8 && (code & 127) == 127) code ^= 1;  // NaN
      words[i * bits / 32] |= code << (i * bits % 32);
      worth[i] = std::ldexp(mx_worth(coding, code), exponents[i / 32] - 127);
      terms[i] = std::abs(worth[i]);
    }
    matrix.weight = words.data(), matrix.scales = exponents.data();
  }
  void fill_dense(std::mt19937& rng, Dtype type) {
    dense = std::make_unique<Numbers>(type, random_floats(rng, worth.size(), 0.5f));
    matrix.weight = dense->bytes.get(), matrix.weight_type = type;
    for (size_t i = 0; i < worth.size(); ++i) worth[i] = dense->values[i], terms[i] = std::abs(worth[i]);
  }
  void fill_codes(std::mt19937& rng, Dtype type) {
    const size_t bits = static_cast<size_t>(matrix.bits), group = static_cast<size_t>(matrix.group), groups = worth.size() / group;
    words.resize(worth.size() * bits / 32);
    scales = std::make_unique<Numbers>(type, random_floats(rng, groups, 0.1f));
    biases = std::make_unique<Numbers>(type == Dtype::f32 ? Dtype::f16 : type, random_floats(rng, groups, 0.5f));
    matrix.weight = words.data();
    matrix.scales = scales->bytes.get(), matrix.scale_type = scales->type;
    matrix.biases = biases->bytes.get(), matrix.bias_type = biases->type;
    for (size_t i = 0; i < worth.size(); ++i) {
      const uint32_t code = rng() & ((1u << bits) - 1);
      for (size_t b = 0; b < bits; ++b) words[(i * bits + b) / 32] |= (code >> b & 1) << ((i * bits + b) % 32);
      const double scale = scales->values[i / group], bias = biases->values[i / group];
      worth[i] = scale * code + bias;
      terms[i] = std::abs(scale) * code + std::abs(bias);
    }
  }
};

class LinearKernel : public testing::Test {
 protected:
  ~LinearKernel() override { force_simd_target(""); }
  template <class F>
  void on_every_target(F&& f) {
    for (const auto& name : available_simd_targets()) {
      SCOPED_TRACE(name);
      force_simd_target(name);
      f();
      if (HasFatalFailure()) return;
    }
  }
};

}  // namespace tersor::kernels
