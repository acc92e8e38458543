// What TurboQuant promises of random vectors: the distortion of theory, unbiased scores, and robustness to sparse vectors.
#include <gtest/gtest.h>

#include "codec/books.h"
#include "codec/rotation.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

std::string turboquant(int bits, int rounds = 2, uint64_t seed = 0) {
  return "turboquant:" + std::to_string(bits) + ",rounds=" + std::to_string(rounds) + ",seed=" + std::to_string(seed);
}

TEST(TurboQuant, DistortionOfGaussianVectorsIsTheReferences) {
  for (const int dim : {64, 128, 256})
    for (int bits = 1; bits <= 5; ++bits)
      for (const Role role : {Role::keys, Role::values}) {
        const double expected =
            reference()["relative_mse"][std::to_string(dim)][std::to_string(bits)][role == Role::keys ? "keys" : "values"];
        Random random(dim * 10 + bits);
        EXPECT_NEAR(mean_relative_error(*make(turboquant(bits), role, dim), random, 3000 * 64 / dim + 1000), expected, 0.02 * expected)
            << dim << " " << bits << (role == Role::keys ? " keys" : " values");
      }
}

// The least-squares scalar takes away the error along the vector, about 3/d of it (the levels' density, the cube root of the Gaussian's,
// has variance 3).
void expect_as_good_as_its_book(int dim, int bits) {
  const double theory = lloyd_max_book(dim, bits).distortion;
  Random random(dim + bits);
  const double found = mean_relative_error(*make(turboquant(bits), Role::values, dim), random, 3000);
  EXPECT_LE(found, 1.01 * theory) << dim << " " << bits;
  EXPECT_GE(found, (1 - 4.0 / dim) * theory) << dim << " " << bits;
}

TEST(TurboQuant, SixBitsAreAsGoodAsTheirBook) {
  for (const int dim : {64, 128, 256}) expect_as_good_as_its_book(dim, 6);
}

TEST(TurboQuant, OtherHeadSizesAreAsGood) {
  for (const int dim : {32, 72, 80, 96, 112, 192}) expect_as_good_as_its_book(dim, 4);
}

struct Slope {
  double value, standard_error;
};

// Regression through zero of <q, k_hat> on <q, k> over random pairs of unit vectors whose cosine is about rho; every pair of several
// rotations.
Slope slope(int dim, int bits, double rho, int seeds, int pairs) {
  double xx = 0, xe = 0, xxee = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto codec = make(turboquant(bits, 2, seed), Role::keys, dim);
    Random random(1000 * bits + seed);
    for (int i = 0; i < pairs; ++i) {
      const Vector k = gaussian(random, dim), other = gaussian(random, dim);
      Vector q(dim);
      for (int d = 0; d < dim; ++d) q[d] = static_cast<float>(rho * k[d] + std::sqrt(1 - rho * rho) * other[d]) / static_cast<float>(dim);
      const double x = dot(q, k), e = dot(q, roundtrip(*codec, k)) - x;
      xx += x * x, xe += x * e, xxee += x * x * e * e;
    }
  }
  return {1 + xe / xx, std::sqrt(xxee) / xx};
}

TEST(TurboQuant, KeyScoresAreUnbiased) {
  for (const int dim : {64, 128})
    for (int bits = 1; bits <= 4; ++bits)
      for (const double rho : {0.0, 0.5, 0.9}) {
        const Slope found = slope(dim, bits, rho, 10, 300);
        EXPECT_NEAR(found.value, 1.0, 3 * found.standard_error) << dim << " " << bits << " rho " << rho;
        if (rho == 0.9) {
          EXPECT_LT(3 * found.standard_error, lloyd_max_book(dim, bits).distortion / 2) << "the test could not see the norm's bias";
        }
      }
}

// The bias that the scalar removes is exact, not only on average: the part of k_hat along k is k.
TEST(TurboQuant, KeysKeepTheirOwnLength) {
  Random random(4);
  for (const int dim : {64, 80, 256})
    for (int bits = 1; bits <= 6; ++bits)
      for (int i = 0; i < 20; ++i) {
        const Vector k = gaussian(random, dim, 10.0f);
        EXPECT_NEAR(dot(k, roundtrip(*make(turboquant(bits), Role::keys, dim), k)) / dot(k, k), 1.0, 0x1p-11 + 1e-6);
      }
}

// No other scalar gives values a smaller error: the remainder is orthogonal to what is stored.
TEST(TurboQuant, ValuesHaveTheLeastSquaresScalar) {
  Random random(5);
  for (int bits = 1; bits <= 6; ++bits) {
    const auto codec = make(turboquant(bits), Role::values, 128);
    const Vector v = gaussian(random, 128), y = roundtrip(*codec, v);
    EXPECT_NEAR(dot(v, y) / dot(y, y), 1.0, 0x1p-11 + 1e-6) << bits;
  }
}

// One round maps a vector of two nonzero numbers to two magnitudes, whatever the seed, so that an unlucky pair is always unlucky.
Vector pair_of(float ratio, int dim) {
  Vector x(dim, 0.0f);
  x[3] = 1, x[dim / 2 + 1] = ratio;
  return x;
}

double mean_over_seeds(const Vector& x, int bits, int rounds, int seeds) {
  double sum = 0;
  for (int seed = 0; seed < seeds; ++seed)
    sum += relative_error(*make(turboquant(bits, rounds, seed), Role::values, static_cast<int>(x.size())), x);
  return sum / seeds;
}

TEST(TurboQuant, TwoRoundsCureWhatOneRoundDoesToSparseVectors) {
  constexpr int kDim = 128;
  for (const int bits : {1, 3, 4}) {
    const double theory = lloyd_max_book(kDim, bits).distortion;
    float worst_ratio = 0;
    double worst = 0;
    for (int i = 1; i <= 40; ++i)
      if (const double error = mean_over_seeds(pair_of(i / 40.0f, kDim), bits, 1, 1); error > worst) worst = error, worst_ratio = i / 40.0f;
    const Vector unlucky = pair_of(worst_ratio, kDim);
    EXPECT_GT(mean_over_seeds(unlucky, bits, 1, 50), 1.2 * theory) << bits;
    EXPECT_NEAR(mean_over_seeds(unlucky, bits, 2, 300), theory, 0.07 * theory) << bits;
  }
}

size_t distinct_magnitudes(const Vector& x, int rounds) {
  std::vector<double> y(x.begin(), x.end());
  Rotation(static_cast<int>(x.size()), rounds, 5).apply(y);
  std::vector<int64_t> sizes;
  for (const double v : y) sizes.push_back(std::llround(std::abs(v) * 1e9));
  std::sort(sizes.begin(), sizes.end());
  return std::unique(sizes.begin(), sizes.end()) - sizes.begin();
}

TEST(TurboQuant, OneRoundLeavesSparseVectorsWithFewMagnitudes) {
  EXPECT_EQ(distinct_magnitudes(pair_of(0, 128), 1), 1u);
  EXPECT_EQ(distinct_magnitudes(pair_of(0.5f, 128), 1), 2u);
  EXPECT_GT(distinct_magnitudes(pair_of(0, 128), 2), 7u);
  EXPECT_GT(distinct_magnitudes(pair_of(0.5f, 128), 2), 14u);
}

TEST(TurboQuant, OneHotVectorsAreAsGoodAsAnyOther) {
  for (const int bits : {1, 2, 3, 4}) {
    const double theory = lloyd_max_book(128, bits).distortion;
    EXPECT_LE(mean_over_seeds(pair_of(0, 128), bits, 2, 300), 1.05 * theory) << bits;
  }
}

TEST(TurboQuant, CodesDependOnTheSeedAlone) {
  Random random(9);
  const Vector x = gaussian(random, 96);
  const auto codes = [&](uint64_t seed) {
    const auto codec = make(turboquant(3, 2, seed), Role::keys, 96);
    std::vector<Code> result(96);
    std::vector<float> scalar(1);
    codec->encode(x, result, scalar);
    return result;
  };
  EXPECT_EQ(codes(1), codes(1));
  EXPECT_NE(codes(1), codes(2));
}

TEST(TurboQuant, ThresholdsAreMidpoints) {
  const auto codec = make("turboquant:5", Role::keys, 128);
  ASSERT_EQ(codec->levels().size(), 32u);
  ASSERT_EQ(codec->thresholds().size(), 31u);
  for (size_t i = 0; i < 31; ++i)
    EXPECT_NEAR(codec->thresholds()[i], (codec->levels()[i] + codec->levels()[i + 1]) / 2, 1e-7 * (1 + std::abs(codec->levels()[i])));
}

}  // namespace
}  // namespace tersor::codec
