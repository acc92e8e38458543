// What holds for every codec: small and large vectors, degenerate ones, head sizes, the numbers that the documentation states.
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "codec/books.h"
#include "codec/rotation.h"
#include "codec/scalar.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Codec, SmallVectorsAreAsGoodAsOthers) {
  for (const std::string& name : compressed_codecs())
    for (const Role role : {Role::keys, Role::values}) {
      const auto codec = make(name, role, 128);
      Random one(1), small(1), large(1);
      const double expected = mean_relative_error(*codec, one, 200);
      EXPECT_NEAR(mean_relative_error(*codec, small, 200, 1e-6f), expected, 0.02 * expected) << name;
      EXPECT_NEAR(mean_relative_error(*codec, large, 200, 1e4f), expected, 0.02 * expected) << name;
    }
}

// Powers of two change the exponent of the scalars and nothing else.
TEST(Codec, PowersOfTwoGiveTheSameCodes) {
  Random random(2);
  for (const std::string& name : compressed_codecs()) {
    const auto codec = make(name, Role::keys, 96);
    const Vector x = gaussian(random, 96);
    Vector small = x;
    for (float& v : small) v *= 0x1p-20f;
    std::vector<Code> codes(96), others(96);
    Vector scalars(std::max(1, 2 * codec->groups())), other_scalars(scalars.size());
    codec->encode(x, codes, scalars), codec->encode(small, others, other_scalars);
    EXPECT_EQ(codes, others) << name;
    for (size_t i = 0; i < scalars.size(); ++i) EXPECT_EQ(other_scalars[i], scalars[i] * 0x1p-20f) << name;
  }
}

TEST(Codec, ZeroComesBackAsZero) {
  for (const std::string& name : compressed_codecs())
    for (const Role role : {Role::keys, Role::values})
      for (const float x : roundtrip(*make(name, role, 80), Vector(80, 0.0f))) EXPECT_EQ(x, 0.0f) << name;
}

// NaN counts as 0 and infinity as the largest half; the result is finite and what it would be for the cleaned vector.
TEST(Codec, NonFiniteNumbersAreCleaned) {
  Random random(3);
  for (const std::string& name : compressed_codecs()) {
    const auto codec = make(name, Role::values, 64);
    Vector x = gaussian(random, 64), clean = x;
    x[5] = kNan, x[20] = kInfinity, x[40] = -kInfinity, x[41] = 1e30f;
    clean[5] = 0, clean[20] = kInputMax, clean[40] = -kInputMax, clean[41] = kInputMax;
    const Vector y = roundtrip(*codec, x);
    EXPECT_EQ(y, roundtrip(*codec, clean)) << name;
    for (const float v : y) EXPECT_TRUE(std::isfinite(v)) << name;
  }
}

// Round-trip error at every head size stays within 1.2 times that of 128.
TEST(Codec, EveryHeadSizeWorks) {
  for (const std::string& name : compressed_codecs()) {
    Random random(4);
    const double expected = mean_relative_error(*make(name, Role::values, 128), random, 300);
    for (const int dim : {32, 64, 72, 80, 96, 100, 112, 127, 128, 192, 256})
      EXPECT_LE(mean_relative_error(*make(name, Role::values, dim), random, 300), 1.2 * expected) << name << " " << dim;
  }
}

TEST(Codec, ImpossibleSizesAreRefused) {
  for (const char* name : {"full", "affine:4", "turboquant:4"})
    for (const int dim : {0, -1, 1025, 1 << 30}) EXPECT_THROW(make(name, Role::keys, dim), Error) << name << " " << dim;
  EXPECT_THROW(make("turboquant:4", Role::keys, 2), Error);
}

TEST(Codec, FullRoundsToItsType) {
  Random random(5);
  const Vector x = gaussian(random, 100);
  const Vector half = roundtrip(*make("full:fp16", Role::keys, 100), x), brain = roundtrip(*make("full:bf16", Role::keys, 100), x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(half[i], half_to_float(float_to_half(x[i])));
    EXPECT_EQ(brain[i], bfloat_to_float(float_to_bfloat(x[i])));
  }
  EXPECT_EQ(roundtrip(*make("full:fp32", Role::keys, 100), x), x);
  EXPECT_EQ(Codec::make(Spec::parse("full"), Role::keys, 64, Dtype::f32)->bits_per_element(), 32);
  EXPECT_EQ(Codec::make(Spec::parse("full:bf16"), Role::keys, 64, Dtype::f32)->bits_per_element(), 16);
}

TEST(Codec, BitsPerElementAreTheDocumentedOnes) {
  for (const int dim : {64, 128, 256}) {
    for (const int bits : {2, 3, 4, 5, 6, 8})
      for (const int group : {32, 64})
        EXPECT_DOUBLE_EQ(make("affine:" + std::to_string(bits) + ",group=" + std::to_string(group), Role::keys, dim)->bits_per_element(),
                         bits + 32.0 / group);
    for (int bits = 1; bits <= 6; ++bits)
      EXPECT_DOUBLE_EQ(make("turboquant:" + std::to_string(bits), Role::keys, dim)->bits_per_element(), bits + 16.0 / dim);
    EXPECT_DOUBLE_EQ(make("full:fp16", Role::keys, dim)->bits_per_element(), 16);
  }
  EXPECT_DOUBLE_EQ(make("affine:4", Role::keys, 80)->bits_per_element(), 4 + 2 * 32.0 / 80) << "a ragged group has a scale and a bias too";
}

std::string documentation() {
  std::ostringstream text;
  text << std::ifstream(TERSOR_SOURCE_DIR "/docs/codecs.md").rdbuf();
  return text.str();
}

// The table of distortions at d = 128, five digits.
TEST(Codec, DocumentedDistortionsAreThoseOfTheBooks) {
  const std::string text = documentation();
  const size_t row = text.find("| D |");
  ASSERT_NE(row, std::string::npos);
  std::istringstream numbers(text.substr(row + 5));
  for (int bits = 1; bits <= 5; ++bits) {
    double stated = 0;
    char bar = 0;
    ASSERT_TRUE(numbers >> stated >> bar);
    const double exact = lloyd_max_book(128, bits).distortion;
    EXPECT_NEAR(stated, exact, 0.5001 * std::pow(10.0, std::floor(std::log10(exact)) - 4)) << bits;
  }
}

TEST(Codec, DocumentedDefaultsAreThoseOfTheCode) {
  const Spec plain;
  const auto states = [text = documentation()](const std::string& part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(states("Hadamard rounds (default " + std::to_string(plain.rounds) + ")"));
  EXPECT_TRUE(states("channels (default " + std::to_string(plain.group) + ")"));
}

}  // namespace
}  // namespace tersor::codec
