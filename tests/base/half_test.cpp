#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tersor/base.h"

namespace tersor {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of a finite binary16 by its definition.
float half_by_definition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float magnitude =
      exponent ? std::ldexp(1024.0f + static_cast<float>(mantissa), exponent - 25) : std::ldexp(static_cast<float>(mantissa), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryFiniteHalfHasItsDefinedValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float value = half_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(value, half_by_definition(static_cast<uint16_t>(bits))) << bits;
    ASSERT_EQ(float_to_half(value), bits);
  }
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = half_to_float(bits), high = half_to_float(static_cast<uint16_t>(bits + 1)), middle = (low + high) / 2;
    ASSERT_EQ(float_to_half(middle), bits % 2 ? bits + 1 : bits) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(float_to_half(-std::nextafter(middle, kInfinity)), 0x8000 | (bits + 1));
  }
}

TEST(Half, OverflowBecomesInfinityAndNanStaysNan) {
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_EQ(half_to_float(0x7c00), kInfinity);
  EXPECT_EQ(half_to_float(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::nanf("")))));
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bfloat, EveryBfloatComesBackAndNanStaysNan) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(bfloat_to_float(float_to_bfloat(value)))) << bits;
    else
      ASSERT_EQ(float_to_bfloat(value), bits);
  }
  EXPECT_TRUE(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bfloat, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bfloat(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(DtypeNames, AreReadInEverySpellingAndUnknownOnesAreNamed) {
  for (const auto* text : {"f16", "fp16", "float16"}) EXPECT_EQ(parse_dtype(text), Dtype::f16);
  for (const auto* text : {"bf16", "bfloat16"}) EXPECT_EQ(parse_dtype(text), Dtype::bf16);
  for (const Dtype type : {Dtype::f16, Dtype::bf16, Dtype::f32}) EXPECT_EQ(parse_dtype(name_of(type)), type);
  try {
    parse_dtype("f8");
    FAIL() << "f8 was accepted";
  } catch (const Error& error) { EXPECT_NE(std::string(error.what()).find("\"f8\""), std::string::npos); }
}

}  // namespace
}  // namespace tersor
