// Row conversions against the scalar conversions of the base room, on every SIMD target of this machine.
#include "kernels/cpu/float_convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/simd_target.h"

namespace tersor::kernels {
namespace {

class FloatConvert : public testing::Test {
 protected:
  ~FloatConvert() override { force_simd_target(""); }
};

void expect_same_bits_or_nan(float got, float want, uint32_t what) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << what;
  } else {
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << what;
  }
}

TEST_F(FloatConvert, Every16BitPatternConvertsAndReturns) {
  std::vector<uint16_t> bits(65536), back(65536);
  std::iota(bits.begin(), bits.end(), 0);
  std::vector<float> values(65536);
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
      to_float(type, bits.data(), values.data(), bits.size());
      from_float(type, values.data(), back.data(), back.size());
      for (uint32_t i = 0; i < 65536; ++i) {
        expect_same_bits_or_nan(values[i], type == Dtype::f16 ? half_to_float(bits[i]) : bfloat_to_float(bits[i]), i);
        if (!std::isnan(values[i])) { ASSERT_EQ(back[i], bits[i]) << i; }
      }
    }
  }
}

TEST_F(FloatConvert, RoundsLikeTheScalarConversions) {
  std::mt19937 rng(5);
  std::vector<float> values(40000);
  for (float& v : values) v = std::bit_cast<float>(static_cast<uint32_t>(rng()));
  for (size_t i = 0; i < 20000; ++i) {  // the range of f16, its subnormals, exact ties and its upper end included
    const uint32_t exponent = 127 - 28 + rng() % 46, mantissa = rng() % 3 ? rng() & 0x7FFFFF : (rng() & 0x7FF) << 12;
    values[i] = std::bit_cast<float>((static_cast<uint32_t>(rng()) & 0x80000000u) | exponent << 23 | mantissa);
  }
  const std::vector<float> extremes = {65504.0f, 65519.99f, 65520.0f, 1e38f, -1e38f, INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-45f, 3e38f};
  std::copy(extremes.begin(), extremes.end(), values.begin());
  std::vector<uint16_t> got(values.size());
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
      from_float(type, values.data(), got.data(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const bool half = type == Dtype::f16;
        if (std::isnan(values[i])) {
          ASSERT_TRUE(std::isnan(half ? half_to_float(got[i]) : bfloat_to_float(got[i]))) << i;
        } else {
          ASSERT_EQ(got[i], half ? float_to_half(values[i]) : float_to_bfloat(values[i])) << values[i];
        }
      }
    }
  }
}

TEST_F(FloatConvert, AnyLengthTouchesOnlyItsOwnNumbers) {
  for (const auto& name : available_simd_targets()) {
    force_simd_target(name);
    for (size_t n = 0; n < 40; ++n) {
      for (const Dtype type : {Dtype::f16, Dtype::bf16, Dtype::f32}) {
        std::vector<float> from(n, 1.5f), back(n);
        std::vector<uint8_t> middle(n * size_of(type));
        from_float(type, from.data(), middle.data(), n);
        to_float(type, middle.data(), back.data(), n);
        ASSERT_EQ(from, back) << name << " " << n;
      }
    }
  }
}

}  // namespace
}  // namespace tersor::kernels
