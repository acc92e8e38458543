// Linear-layer kernels against plain sums in double, on every SIMD target of this machine.
#include "kernels/cpu/linear.h"

#include <numbers>

#include "kernels/cpu/dequantize.h"
#include "kernels_cpu/linear_cases.h"

namespace tersor::kernels {
namespace {

std::vector<float> few_rows(const Weights& w, const Numbers& x, size_t rows, size_t first, size_t count) {
  Aligned prepared(linear_prepared_size(w.matrix, rows)), scratch(linear_few_rows_scratch(w.matrix));
  linear_prepare(w.matrix, x.type, x.bytes.get(), rows, prepared.memory);
  std::vector<float> out(rows * count);
  linear_few_rows(w.matrix, prepared.memory, rows, first, count, out.data(), count, scratch.memory);
  return out;
}

std::vector<float> many_rows(const Weights& w, const Numbers& x, size_t rows, size_t first, size_t count) {
  Aligned scratch(linear_many_rows_scratch(w.matrix));
  std::vector<float> out(rows * count);
  for (size_t at = 0; at < count; at += kLinearPanel)
    linear_many_rows(w.matrix, x.values.data(), w.matrix.in, rows, first + at, std::min(kLinearPanel, count - at), out.data() + at, count,
                     scratch.memory);
  return out;
}

// Both kernels for all x rows at once and for ranges of weight rows; errors within in + 8 roundings of the summed magnitudes.
void check(const Weights& w, const Numbers& x, size_t rows, size_t first, size_t count, bool few) {
  const auto got = few ? few_rows(w, x, rows, first, count) : many_rows(w, x, rows, first, count);
  const size_t in = w.matrix.in;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < count; ++o) {
      double sum = 0, magnitude = 0;
      for (size_t k = 0; k < in; ++k) {
        sum += w.worth[(first + o) * in + k] * x.values[r * in + k];
        magnitude += w.terms[(first + o) * in + k] * std::abs(x.values[r * in + k]);
      }
      ASSERT_NEAR(got[r * count + o], sum, static_cast<double>(in + 8) * kEpsilon * magnitude)
          << (few ? "few" : "many") << " rows " << rows << " x row " << r << " weight row " << first + o;
    }
  }
}

TEST_F(LinearKernel, EveryWidthAndGroupEqualsTheDoubleReference) {
  unsigned seed = 1;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      SCOPED_TRACE("bits " + std::to_string(bits) + " group " + std::to_string(group));
      for (const size_t groups : {1, 3, 4}) {
        const Dtype type = kTypes[++seed % 3];
        const Weights w(bits, group, 23, groups * static_cast<size_t>(group), type, seed);
        std::mt19937 rng(seed);
        const Numbers x(kTypes[(seed + 1) % 3], random_floats(rng, 9 * w.matrix.in, 1.0f));
        on_every_target([&] {
          for (const size_t rows : {1, 2, 3, 5, 8}) check(w, x, rows, 0, 23, true);
          check(w, x, 1, 5, 11, true);
          check(w, x, 9, 0, 23, false);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LinearKernel, DenseWeightsOfAnyLength) {
  for (const Dtype type : kTypes) {
    for (const size_t in : {1, 7, 16, 33, 100, 256}) {
      SCOPED_TRACE(std::string(name_of(type)) + " in " + std::to_string(in));
      const Weights w(0, 0, 21, in, type, static_cast<unsigned>(in));
      std::mt19937 rng(static_cast<unsigned>(in) + 7);
      for (const Dtype x_type : kTypes) {
        const Numbers x(x_type, random_floats(rng, 9 * in, 1.0f));
        on_every_target([&] {
          for (const size_t rows : {1, 2, 3, 8}) check(w, x, rows, 0, 21, true);
          check(w, x, 9, 3, 18, false);
        });
      }
    }
  }
}

TEST_F(LinearKernel, LongRowsAndSeveralPanels) {
  const Weights quantised(4, 32, 150, 1152, Dtype::f16, 3), dense(0, 0, 70, 801, Dtype::bf16, 4);
  std::mt19937 rng(5);
  const Numbers x(Dtype::f32, random_floats(rng, 33 * 1152, 1.0f)), y(Dtype::f32, random_floats(rng, 33 * 801, 1.0f));
  on_every_target([&] {
    check(quantised, x, 2, 0, 150, true);
    check(quantised, x, 33, 0, 150, false);
    check(dense, y, 33, 0, 70, false);
  });
}

TEST_F(LinearKernel, OutliersAndZerosKeepTheErrorBound) {
  const Weights w(4, 32, 9, 128, Dtype::f16, 11);
  std::mt19937 rng(12);
  std::vector<float> values = random_floats(rng, 3 * 128, 1e-6f);
  values[5] = 1e4f, values[40] = -1e4f;
  std::fill(values.begin() + 128, values.begin() + 256, 0.0f);
  const Numbers x(Dtype::f32, values);
  on_every_target([&] {
    check(w, x, 3, 0, 9, true);
    check(w, x, 3, 0, 9, false);
  });
}

TEST_F(LinearKernel, InfinityAndNaNStayInTheirRow) {
  const Weights w(4, 32, 9, 128, Dtype::f16, 11);
  std::mt19937 rng(13);
  for (const size_t rows : {3, 7, 12}) {
    const std::vector<float> clean = random_floats(rng, rows * 128, 1.0f);
    std::vector<float> dirty = clean;
    dirty[128 + 3] = std::numeric_limits<float>::infinity();
    dirty[128 + 77] = std::numeric_limits<float>::quiet_NaN();
    const Numbers a(Dtype::f32, clean), b(Dtype::f32, dirty);
    on_every_target([&] {
      for (const bool few : {true, false}) {
        const auto want = few ? few_rows(w, a, rows, 0, 9) : many_rows(w, a, rows, 0, 9);
        const auto got = few ? few_rows(w, b, rows, 0, 9) : many_rows(w, b, rows, 0, 9);
        for (size_t i = 0; i < want.size(); ++i) {
          if (i / 9 == 1) {
            ASSERT_TRUE(std::isnan(got[i]));
          } else {
            ASSERT_EQ(got[i], want[i]) << "row " << i / 9;
          }
        }
      }
    });
  }
}

TEST_F(LinearKernel, WeightRowsWithNonFiniteScalesStayApart) {
  Weights w(4, 32, 9, 96, Dtype::f32, 21);
  std::mt19937 rng(22);
  const Numbers x(Dtype::f32, random_floats(rng, 96, 1.0f));
  const auto want = few_rows(w, x, 1, 0, 9);
  reinterpret_cast<float*>(w.scales->bytes.get())[4 * 3] = std::numeric_limits<float>::quiet_NaN();  // first group of row 4
  w.biases->bytes[4 * 3 * 2 + 1] = 0x7C, w.biases->bytes[4 * 3 * 2] = 1;                             // an f16 NaN
  on_every_target([&] {
    const auto got = few_rows(w, x, 1, 0, 9);
    for (size_t o = 0; o < 9; ++o) {
      if (o == 4) {
        ASSERT_TRUE(std::isnan(got[o]));
      } else {
        ASSERT_NEAR(got[o], want[o], 1e-4 * (1 + std::abs(want[o]))) << o;
      }
    }
  });
}

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
