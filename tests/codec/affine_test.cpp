// Affine codes: error bounds from their own step, the degenerate groups, and head sizes that the group does not divide.
#include "codec/affine.h"

#include <gtest/gtest.h>

#include "codec/vectors.h"

namespace tersor::codec {
namespace {

constexpr int kBits[] = {2, 3, 4, 5, 6, 8};

struct Group {
  float lo, hi;
  double step(int bits) const { return (static_cast<double>(hi) - lo) / ((1 << bits) - 1); }
  double edge() const { return std::max(std::abs(lo), std::abs(hi)); }
};

Group group_of(const Vector& x, size_t begin, size_t size) {
  const auto [lo, hi] = std::minmax_element(x.begin() + begin, x.begin() + std::min(x.size(), begin + size));
  return {*lo, *hi};
}

// Half a step for rounding to a code, half a step where the scale was bent to make zero a code (it changes by at most half a step
// over the codes it needs), and what storing scale and bias in 16 bits costs.
double bound(const Group& group, int bits) {
  const double step = group.step(bits);
  return 1.3 * step + (step * ((1 << bits) - 1) + group.edge()) * 0x1p-10 + 1e-6 * group.edge();
}

void expect_within_bound(const std::string& name, const Vector& x) {
  const auto codec = make(name, Role::keys, static_cast<int>(x.size()));
  const Vector y = roundtrip(*codec, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t group = codec->spec().group;
    EXPECT_LE(std::abs(static_cast<double>(y[i]) - x[i]), bound(group_of(x, i / group * group, group), codec->spec().bits))
        << name << " dim " << x.size() << " at " << i;
  }
}

std::string affine(int bits, int group = 64) { return "affine:" + std::to_string(bits) + ",group=" + std::to_string(group); }

TEST(Affine, EveryNumberIsWithinItsStep) {
  Random random(1);
  for (const int bits : kBits)
    for (const int group : {32, 64, 128})
      for (const int dim : {32, 64, 72, 80, 96, 100, 112, 128, 192, 256})
        for (const float offset : {0.0f, 0.7f, -3.0f, 50.0f}) {
          Vector x = gaussian(random, dim);
          for (float& v : x) v += offset;
          expect_within_bound(affine(bits, group), x);
        }
}

// The mean error of a uniform quantiser is a twelfth of the squared step; bending the scale costs up to a tenth of the step.
TEST(Affine, MeanErrorIsThatOfTheStep) {
  for (const int bits : kBits) {
    const auto codec = make(affine(bits), Role::values, 64);
    Random random(bits);
    double error = 0, expected = 0;
    for (int i = 0; i < 400; ++i) {
      const Vector x = gaussian(random, 64), y = roundtrip(*codec, x);
      for (size_t d = 0; d < x.size(); ++d) error += std::pow(static_cast<double>(x[d]) - y[d], 2) / 64;
      expected += std::pow(group_of(x, 0, 64).step(bits), 2) / 12;
    }
    EXPECT_NEAR(error / expected, 1.0, 0.25) << bits;
  }
}

TEST(Affine, ConstantGroupsComeBack) {
  for (const int bits : kBits)
    for (const float value : {0.0f, 1.0f, -1.0f, 3.14159f, -2.5e-6f, 60000.0f, 1e-9f}) {
      const Vector y = roundtrip(*make(affine(bits), Role::keys, 80), Vector(80, value));
      for (const float v : y) {
        EXPECT_TRUE(std::isfinite(v));
        EXPECT_LE(std::abs(v - value), std::abs(value) * 0x1p-10f) << bits;
      }
    }
}

TEST(Affine, ZeroIsACodeWhereTheRangeSpansIt) {
  Random random(3);
  for (const int bits : kBits)
    for (int i = 0; i < 200; ++i) {
      Vector x = gaussian(random, 64);
      x[17] = 0;
      const Affine affine = affine_from_range(*std::min_element(x.begin(), x.end()), *std::max_element(x.begin(), x.end()), bits);
      const double zero_code = -static_cast<double>(affine.bias) / affine.scale;
      EXPECT_NEAR(zero_code, std::nearbyint(zero_code), std::abs(zero_code) * 0x1p-9) << bits;
      EXPECT_LE(std::abs(roundtrip(*make("affine:" + std::to_string(bits), Role::keys, 64), x)[17]), std::abs(affine.bias) * 0x1p-9)
          << bits;
    }
}

TEST(Affine, BothSignsAreTreatedAlike) {
  Random random(4);
  for (const int bits : kBits) {
    Vector x = gaussian(random, 64), minus = x;
    for (float& v : minus) v = -v;
    const Vector y = roundtrip(*make(affine(bits), Role::keys, 64), x), other = roundtrip(*make(affine(bits), Role::keys, 64), minus);
    for (int d = 0; d < 64; ++d) EXPECT_EQ(y[d], -other[d]);
  }
}

// The last group may have fewer channels; its neighbours do not matter to it.
TEST(Affine, RaggedLastGroupStandsAlone) {
  Random random(5);
  for (const auto& [dim, group, groups] : {std::tuple{80, 64, 2}, {100, 32, 4}, {100, 64, 2}, {100, 128, 1}, {72, 64, 2}}) {
    const auto codec = make(affine(4, group), Role::keys, dim);
    ASSERT_EQ(codec->groups(), groups);
    Vector x = gaussian(random, dim), loud = x;
    const int last = (groups - 1) * group;
    for (int d = 0; d < last; ++d) loud[d] *= 1000;
    const Vector y = roundtrip(*codec, x), z = roundtrip(*codec, loud);
    for (int d = last; d < dim; ++d) EXPECT_EQ(y[d], z[d]);
    std::vector<Code> codes(dim);
    Vector scalars(2 * groups);
    codec->encode(x, codes, scalars);
    const Affine expected = affine_from_range(group_of(x, last, group).lo, group_of(x, last, group).hi, 4);
    EXPECT_EQ(scalars[groups - 1], expected.scale);
    EXPECT_EQ(scalars[2 * groups - 1], expected.bias);
  }
}

}  // namespace
}  // namespace tersor::codec
