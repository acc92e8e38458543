// Packed weights of the microscaling formats and dense ones against plain sums in double, on every SIMD target of this machine.
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/weight_codes.h"
#include "kernels_cpu/packed_cases.h"

namespace tersor::kernels {
namespace {

using LinearFormats = LinearKernel;

constexpr Coding kMx[] = {Coding::mxfp4, Coding::mxfp8};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_F(LinearFormats, EveryCodeAndScaleIsWorthWhatItsFormatSays) {
  for (const Coding coding : kMx)
    for (unsigned code = 0; code < (coding == Coding::mxfp4 ? 16u : 256u); ++code) {
      if (coding == Coding::mxfp8 && (code & 127) == 127) {
        EXPECT_TRUE(std::isnan(mx_value(coding, static_cast<uint8_t>(code))));
        continue;
      }
      const float value = mx_value(coding, static_cast<uint8_t>(code));
      EXPECT_EQ(value, mx_worth(coding, code)) << name_of(coding) << " " << code;
    }
  for (unsigned e = 0; e < 255; ++e) EXPECT_EQ(e8m0_value(static_cast<uint8_t>(e)), std::ldexp(1.0f, static_cast<int>(e) - 127));
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

void expect_kept(const Weights& w, const std::string& what) {
  const Packed packed(w.matrix);
  std::vector<float> row(w.matrix.in), expected(w.matrix.in);
  for (size_t r = 0; r < w.matrix.out; ++r) {
    unpack_row(packed.matrix, r, row.data());
    dequantize_row(w.matrix, r, expected.data());
    ASSERT_EQ(row, expected) << what << ", row " << r;
    for (size_t k = 0; k < w.matrix.in; ++k) ASSERT_EQ(row[k], static_cast<float>(w.worth[r * w.matrix.in + k])) << what << " " << r;
  }
}

TEST_F(LinearFormats, KeepEveryNumber) {
  for (const Coding coding : kMx)
    for (const size_t groups : {1, 3, 4, 9}) expect_kept(Weights(coding, 37, 32 * groups, 1, 0, 200), std::string(name_of(coding)));
  for (const Dtype type : kTypes)
    for (const size_t in : {1, 7, 33, 100}) expect_kept(Weights(0, 0, 21, in, type, 2), std::string(name_of(type)));
}

TEST_F(LinearFormats, MicroscalingOfEveryLengthAndRowCountEqualsTheDoubleReference) {
  unsigned seed = 1;
  for (const Coding coding : kMx) {
    for (const bool integers : {true, false}) {
      if (integers && coding == Coding::mxfp8) continue;
      SCOPED_TRACE(std::string(name_of(coding)) + (integers ? " in integers" : " in floats"));
      for (const size_t groups : {1, 3, 4, 9, 17}) {
        const Weights w(coding, 39, 32 * groups, ++seed);
        const Packed packed(w.matrix, integers);
        ASSERT_EQ(packed.matrix.integers, integers);
        std::mt19937 rng(seed);
        const Numbers x(kTypes[seed % 3], random_floats(rng, 19 * w.matrix.in, 1.0f));
        on_every_target([&] {
          for (const size_t rows : {1, 2, 3, 4, 5, 7, 8, 11, 19}) check(w, packed, x, rows);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LinearFormats, DenseOfEveryLengthAndRowCountEqualsTheDoubleReference) {
  for (const Dtype type : kTypes) {
    for (const size_t in : {1, 7, 32, 100, 257, 530}) {
      SCOPED_TRACE(std::string(name_of(type)) + " in " + std::to_string(in));
      const Weights w(0, 0, 35, in, type, static_cast<unsigned>(in));
      const Packed packed(w.matrix);
      std::mt19937 rng(static_cast<unsigned>(in) + 7);
      const Numbers x(kTypes[in % 3], random_floats(rng, 19 * in, 1.0f));
      on_every_target([&] {
        for (const size_t rows : {1, 2, 3, 4, 6, 8, 19}) check(w, packed, x, rows);
      });
      if (HasFatalFailure()) return;
    }
  }
}

// The ends of the scales' range, with activations that keep the results inside a float's.
TEST_F(LinearFormats, ExtremeScales) {
  for (const Coding coding : kMx) {
    for (const bool integers : {true, false}) {
      for (const unsigned scale : {0u, 1u, 2u, 253u, 254u}) {
        SCOPED_TRACE(std::string(name_of(coding)) + " " + std::to_string(scale));
        const Weights w(coding, 20, 160, scale + 1, scale, scale);
        const Packed packed(w.matrix, integers);
        std::mt19937 rng(scale);
        const Numbers x(Dtype::f32, random_floats(rng, 19 * 160, scale > 200 ? 1e-12f : 1e10f));
        on_every_target([&] {
          for (const size_t rows : {1, 4}) check(w, packed, x, rows);
          // Weights become floats for more rows, which 6 * 2^127 is not.
          if (packed.matrix.integers || scale < 200) check(w, packed, x, 19);
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LinearFormats, ANaNScaleOrCodeMakesItsRowNaNAndNoOther) {
  for (const Coding coding : kMx) {
    for (const bool by_code : {false, true}) {
      if (by_code && coding == Coding::mxfp4) continue;
      Weights w(coding, 20, 96, 5);
      if (by_code) {
        w.words[4 * 24 + 10] |= 0x7f00;
      } else {
        w.exponents[4 * 3 + 1] = 255;
      }
      std::mt19937 rng(6);
      const Numbers x(Dtype::f32, random_floats(rng, 19 * 96, 1.0f)), zeros(Dtype::f32, std::vector<float>(19 * 96, 0.0f));
      for (const bool integers : {true, false}) {
        const Packed packed(w.matrix, integers);
        on_every_target([&] {
          for (const Numbers* input : {&x, &zeros})
            for (const size_t rows : {1, 19}) {
              const auto got = multiply(packed.matrix, *input, rows, 0, 2);
              for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i % 32 == 4) << name_of(coding) << " " << i;
            }
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LinearFormats, NonFiniteActivationsStayInTheirRow) {
  std::mt19937 rng(8);
  auto dirty = random_floats(rng, 3 * 96, 1.0f);
  dirty[96 + 3] = std::numeric_limits<float>::infinity(), dirty[96 + 40] = kNan;
  const Numbers x(Dtype::f32, dirty);
  const Weights all[] = {Weights(Coding::mxfp4, 16, 96, 1), Weights(Coding::mxfp8, 16, 96, 2), Weights(0, 0, 16, 96, Dtype::f16, 3)};
  for (const Weights& w : all)
    for (const bool integers : {true, false}) {
      const Packed packed(w.matrix, integers);
      on_every_target([&] {
        const auto got = multiply(packed.matrix, x, 3, 0, 1);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i / 16 == 1) << i;
      });
    }
}

// Integers are the same on every target, so results differ by float rounding alone.
TEST_F(LinearFormats, TargetsAgreeToFloatRounding) {
  for (const Coding coding : kMx) {
    const Weights w(coding, 32, 1024, 7);
    const Packed packed(w.matrix);
    std::vector<std::vector<float>> results;
    on_every_target([&] { results.push_back(one_row(packed.matrix)); });
    expect_alike(results, 100);
  }
}

}  // namespace
}  // namespace tersor::kernels
