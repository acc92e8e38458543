// Rows of stored weights as numbers, and what follows a linear layer's sums, on every SIMD target of this machine.
#include "kernels/cpu/linear.h"

#include <numbers>

#include "kernels/cpu/dequantize.h"
#include "kernels_cpu/linear_cases.h"

namespace tersor::kernels {
namespace {

TEST_F(LinearKernel, DequantizedRowsAreExactlyScaleTimesCodePlusBias) {
  for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
    const Weights w(bits, bits ? 64 : 0, 5, 192, Dtype::f16, static_cast<unsigned>(bits));
    std::vector<float> row(192);
    for (size_t r = 0; r < 5; ++r) {
      dequantize_row(w.matrix, r, row.data());
      for (size_t k = 0; k < 192; ++k)
        ASSERT_NEAR(row[k], w.worth[r * 192 + k], kEpsilon * w.terms[r * 192 + k]) << bits << " " << r << " " << k;
    }
  }
}

double activated(Activation activation, double v) {
  switch (activation) {
    case Activation::silu: return v / (1 + std::exp(-v));
    case Activation::gelu: return v / 2 * std::erfc(-v / std::sqrt(2.0));
    case Activation::gelu_tanh:  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which loses nothing where tanh is near -1
      return v / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  }
  return 0;
}

// Rounding of the formula is relative to the result; of a large exponent also to the exponent.
TEST_F(LinearKernel, GatesEqualTheirFormulas) {
  std::mt19937 rng(30);
  std::vector<float> gate = random_floats(rng, 1500, 3.0f);
  const std::vector<float> extremes = {0.0f,   -0.0f,  100.0f,  -100.0f, 1e4f,   -1e4f, 88.5f,
                                       -88.5f, 1e-30f, -1e-30f, 13.9f,   -13.9f, -5.5f, 5.5f};
  std::copy(extremes.begin(), extremes.end(), gate.begin() + 3);
  const std::vector<float> up = random_floats(rng, gate.size(), 1.0f);
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh})
    for (const Dtype type : kTypes) {
      const double unit = type == Dtype::f32 ? kEpsilon : type == Dtype::f16 ? 0x1p-10 : 0x1p-7;
      on_every_target([&] {
        std::vector<char> out(gate.size() * size_of(type));
        std::vector<float> got(gate.size());
        finish_gated(type, activation, gate.data(), up.data(), out.data(), gate.size());
        to_float(type, out.data(), got.data(), gate.size());
        for (size_t i = 0; i < gate.size(); ++i) {
          const double v = gate[i], want = activated(activation, v) * up[i], exponent = std::min(100.0, v * v);
          ASSERT_NEAR(got[i], want, (unit + (8 + exponent) * kEpsilon) * std::abs(want) + (type == Dtype::f16 ? 6e-8 : 1e-33))
              << name_of(activation) << " " << gate[i];
        }
      });
    }
}

TEST_F(LinearKernel, FinishersEqualTheirFormulas) {
  std::mt19937 rng(31);
  const size_t n = 77;
  const std::vector<float> gate = random_floats(rng, n, 4.0f);
  for (const Dtype type : kTypes) {
    const double unit = type == Dtype::f32 ? kEpsilon : type == Dtype::f16 ? 0x1p-10 : 0x1p-7;
    const Numbers residual(type, random_floats(rng, n, 1.0f));
    on_every_target([&] {
      std::vector<char> out(n * size_of(type));
      std::vector<float> got(n);
      finish_sum(type, gate.data(), residual.bytes.get(), out.data(), n);
      to_float(type, out.data(), got.data(), n);
      for (size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], gate[i] + residual.values[i], unit * std::abs(gate[i] + residual.values[i]));
      std::vector<float> sums(3 * (n + 1), 1.0f);
      add_bias(sums.data(), n + 1, 3, n, type, residual.bytes.get());
      for (size_t r = 0; r < 3; ++r) {
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(sums[r * (n + 1) + i], 1.0f + residual.values[i]);
        ASSERT_EQ(sums[r * (n + 1) + n], 1.0f);
      }
    });
  }
}

}  // namespace
}  // namespace tersor::kernels
