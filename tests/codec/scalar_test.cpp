// The 16-bit floats of scales and norms: every pattern, every kind of rounding.
#include "codec/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tersor/base.h"

namespace tersor::codec {
namespace {

constexpr float kLeast = 0x1p-40f;

TEST(Scalar, EveryNormComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = decode_norm(static_cast<uint16_t>(bits));
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_EQ(encode_norm(value), value > kScalarMax ? encode_norm(kScalarMax) : bits) << bits;
  }
  EXPECT_EQ(encode_norm(kScalarMax), 0xfffe) << "only the very last pattern is never written";
}

TEST(Scalar, EveryScaleComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = decode_scale(static_cast<uint16_t>(bits));
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_LE(std::abs(value), kScalarMax);
    ASSERT_EQ(encode_scale(value), bits == 0x8000 ? 0 : bits) << bits;
  }
}

TEST(Scalar, PatternsRiseWithTheirValues) {
  for (uint32_t bits = 1; bits <= 0xffff; ++bits)
    ASSERT_GT(decode_norm(static_cast<uint16_t>(bits)), decode_norm(static_cast<uint16_t>(bits - 1)));
  for (uint32_t bits = 1; bits <= 0x7fff; ++bits) {
    ASSERT_GT(decode_scale(static_cast<uint16_t>(bits)), decode_scale(static_cast<uint16_t>(bits - 1)));
    ASSERT_EQ(decode_scale(static_cast<uint16_t>(0x8000 | bits)), -decode_scale(static_cast<uint16_t>(bits)));
  }
}

// Rounding to nearest: no value moves by more than half a step, and order is kept.
TEST(Scalar, RoundingIsToNearestAndMonotone) {
  float last_norm = 0, last_scale = 0;
  for (double x = kLeast * 1.002; x <= kScalarMax; x *= 1.00007) {
    const float value = static_cast<float>(x), norm = decode_norm(encode_norm(value)), scale = decode_scale(encode_scale(value));
    const float power = std::exp2(std::floor(std::log2(value)));
    ASSERT_LE(std::abs(norm - value), power * 0x1p-11f) << value;
    ASSERT_LE(std::abs(scale - value), power * 0x1p-10f) << value;
    ASSERT_EQ(decode_scale(encode_scale(-value)), -scale);
    ASSERT_GE(norm, last_norm);
    ASSERT_GE(scale, last_scale);
    last_norm = norm, last_scale = scale;
  }
}

TEST(Scalar, HalvesGoToTheEvenPattern) {
  for (uint32_t bits = 1; bits < 0x7fff; ++bits) {
    const float below = decode_scale(static_cast<uint16_t>(bits)), above = decode_scale(static_cast<uint16_t>(bits + 1));
    ASSERT_EQ(encode_scale(below + (above - below) / 2) % 2, 0) << bits;
  }
}

TEST(Scalar, ExtremesAreClampedAndNothingIsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {0.0f, -0.0f, kLeast, kLeast / 2, std::numeric_limits<float>::denorm_min(), kNan, -kNan}) {
    EXPECT_EQ(encode_norm(value), 0) << value;
    EXPECT_EQ(encode_scale(value), 0) << value;
  }
  for (const float value : {kScalarMax, 0x1p24f, 1e30f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(decode_norm(encode_norm(value)), kScalarMax) << value;
    EXPECT_EQ(decode_scale(encode_scale(value)), kScalarMax) << value;
    EXPECT_EQ(decode_scale(encode_scale(-value)), -kScalarMax) << value;
  }
  EXPECT_EQ(encode_norm(-1.0f), 0) << "norms have no sign";
}

// Any bit pattern that a float can have gives a pattern that decodes to something finite.
TEST(Scalar, AnyFloatIsTaken) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_TRUE(std::isfinite(decode_norm(encode_norm(value))));
    ASSERT_TRUE(std::isfinite(decode_scale(encode_scale(value))));
  }
}

}  // namespace
}  // namespace tersor::codec
