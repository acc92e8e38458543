// Packed affine weights and their integer kernels against plain sums in double, on every SIMD target of this machine.
#include "kernels/cpu/dequantize.h"
#include "kernels_cpu/packed_cases.h"

namespace tersor::kernels {
namespace {

using LinearPacked = LinearKernel;

TEST_F(LinearPacked, KeepsEveryCodeScaleAndBias) {
  unsigned seed = 100;
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128}) {
      ++seed;
      const Weights w(bits, group, 37, 3 * static_cast<size_t>(group), kTypes[seed % 3], seed);
      const Packed packed(w.matrix);
      std::vector<float> row(w.matrix.in), expected(w.matrix.in);
      for (size_t r = 0; r < w.matrix.out; ++r) {
        unpack_row(packed.matrix, r, row.data());
        dequantize_row(w.matrix, r, expected.data());
        ASSERT_EQ(row, expected) << bits << " bits, group " << group << ", row " << r;
      }
    }
}

TEST_F(LinearPacked, EveryWidthGroupAndRowCountEqualsTheDoubleReference) {
  unsigned seed = 1;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      SCOPED_TRACE("bits " + std::to_string(bits) + " group " + std::to_string(group));
      for (const size_t groups : {1, 3, 9}) {
        ++seed;
        const Weights w(bits, group, 39, groups * static_cast<size_t>(group), kTypes[seed % 3], seed);
        const Packed integers(w.matrix), floats(w.matrix, false);
        std::mt19937 rng(seed);
        const Numbers x(kTypes[(seed + 1) % 3], random_floats(rng, 19 * w.matrix.in, 1.0f));
        on_every_target([&] {
          for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 19}) check(w, integers, x, rows);
          for (const size_t rows : {1, 2, 3, 5, 8, 19}) check(w, floats, x, rows);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The integers are the same on every target, so results differ by float rounding alone.
TEST_F(LinearPacked, TargetsAgreeToFloatRounding) {
  const Weights w(4, 32, 32, 1024, Dtype::f16, 7);
  const Packed packed(w.matrix);
  std::vector<std::vector<float>> results;
  on_every_target([&] { results.push_back(one_row(packed.matrix)); });
  expect_alike(results, 20);
}

TEST_F(LinearPacked, PanelsCanBeTakenAlone) {
  const Weights w(4, 64, 64, 128, Dtype::bf16, 3);
  const Packed packed(w.matrix);
  std::mt19937 rng(4);
  const Numbers x(Dtype::f32, random_floats(rng, 3 * 128, 1.0f));
  on_every_target([&] {
    const auto all = multiply(packed.matrix, x, 3, 0, 4), part = multiply(packed.matrix, x, 3, 1, 2);
    for (size_t r = 0; r < 3; ++r)
      for (size_t i = 0; i < 32; ++i) ASSERT_EQ(part[r * 32 + i], all[r * 64 + 16 + i]);
  });
}

TEST_F(LinearPacked, ExtremeActivations) {
  const Weights w(8, 32, 16, 96, Dtype::f32, 5);
  const Packed packed(w.matrix);
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 rng(6);
  on_every_target([&] {
    check(w, packed, Numbers(Dtype::f32, std::vector<float>(96, 0.0f)), 1);
    check(w, packed, Numbers(Dtype::f32, random_floats(rng, 96, 1e-41f)), 1);
    check(w, packed, Numbers(Dtype::f32, random_floats(rng, 96, 1e30f)), 1);
    auto outlier = random_floats(rng, 96, 1.0f);
    outlier[40] = 1e4f;
    check(w, packed, Numbers(Dtype::f32, outlier), 1);
    for (const float bad : {kInf, -kInf, kNan}) {
      auto x = random_floats(rng, 2 * 96, 1.0f);
      x[33] = bad;
      const auto got = multiply(packed.matrix, Numbers(Dtype::f32, x), 2, 0, 1);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isnan(got[i]));
        EXPECT_TRUE(std::isfinite(got[16 + i]));
      }
    }
  });
}

TEST_F(LinearPacked, WeightRowsWithNonFiniteScalesStayApart) {
  Weights w(4, 32, 9, 96, Dtype::f32, 21);
  std::mt19937 rng(22);
  const Numbers x(Dtype::f32, random_floats(rng, 19 * 96, 1.0f));
  reinterpret_cast<float*>(w.scales->bytes.get())[4 * 3] = std::numeric_limits<float>::quiet_NaN();  // first group of row 4
  w.biases->bytes[5 * 3 * 2 + 1] = 0x7C, w.biases->bytes[5 * 3 * 2] = 1;                             // an f16 NaN, of row 5
  for (const bool integers : {true, false}) {
    const Packed packed(w.matrix, integers);
    on_every_target([&] {
      for (const size_t rows : {1, 19}) {
        const auto got = multiply(packed.matrix, x, rows, 0, 1);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i % 16 == 4 || i % 16 == 5) << i;
      }
    });
  }
}

// The largest sums there are: every code and every activation at its top, the longest group.
TEST_F(LinearPacked, IntegerSumsDoNotOverflow) {
  Weights w(8, 128, 16, 256, Dtype::f32, 9);
  std::fill(w.words.begin(), w.words.end(), 0xFFFFFFFFu);
  for (size_t i = 0; i < w.worth.size(); ++i) {
    const double scale = w.scales->values[i / 128], bias = w.biases->values[i / 128];
    w.worth[i] = scale * 255 + bias, w.terms[i] = std::abs(scale) * 255 + std::abs(bias);
  }
  const Packed packed(w.matrix);
  on_every_target([&] {
    for (const float sign : {1.0f, -1.0f}) check(w, packed, Numbers(Dtype::f32, std::vector<float>(8 * 256, sign * 3.7f)), 8);
  });
}

}  // namespace
}  // namespace tersor::kernels
