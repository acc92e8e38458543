// The randomised Hadamard transform: orthogonal at every size it takes, inverted exactly, the same for the same seed.
#include "codec/rotation.h"

#include <gtest/gtest.h>

#include "codec/vectors.h"

namespace tersor::codec {
namespace {

// Columns R e_0, R e_1, ...
std::vector<std::vector<double>> columns(const Rotation& rotation) {
  std::vector<std::vector<double>> all(rotation.dim(), std::vector<double>(rotation.dim(), 0.0));
  for (int i = 0; i < rotation.dim(); ++i) {
    all[i][i] = 1;
    rotation.apply(all[i]);
  }
  return all;
}

double distance_from_identity(const std::vector<std::vector<double>>& columns) {
  double most = 0;
  for (size_t i = 0; i < columns.size(); ++i)
    for (size_t j = i; j < columns.size(); ++j) {
      double sum = i == j ? -1 : 0;
      for (size_t k = 0; k < columns.size(); ++k) sum += columns[i][k] * columns[j][k];
      most = std::max(most, std::abs(sum));
    }
  return most;
}

TEST(Rotation, IsOrthogonalAtEverySize) {
  for (const int dim : rotation_sizes())
    for (const int rounds : {1, 2}) EXPECT_LT(distance_from_identity(columns(Rotation(dim, rounds, 3))), 1e-12) << dim << " " << rounds;
}

TEST(Rotation, CoversTheHeadSizesOfModels) {
  for (const int dim : {32, 64, 72, 80, 96, 112, 128, 160, 176, 192, 256, 512, 1024}) EXPECT_TRUE(Rotation::is_hadamard(dim)) << dim;
}

TEST(Rotation, HadamardSizesAreTheDocumentedOnes) {
  const std::vector<int> sizes = rotation_sizes();
  for (int dim = 1; dim <= 256; ++dim) EXPECT_EQ(Rotation::is_hadamard(dim), std::binary_search(sizes.begin(), sizes.end(), dim)) << dim;
  EXPECT_FALSE(Rotation::is_hadamard(0));
  EXPECT_FALSE(Rotation::is_hadamard(-64));
}

// Sizes without a Hadamard matrix are rotated through the cosine transform of their odd part: as orthogonal, and the inverse is the
// transpose.
TEST(Rotation, OtherSizesAreOrthogonalToo) {
  for (const int dim : {3, 33, 84, 100, 127, 130, 132, 200, 250})
    for (const int rounds : {1, 2}) {
      const Rotation rotation(dim, rounds, 3);
      EXPECT_EQ(rotation.core() * rotation.power(), dim);
      const auto forward = columns(rotation);
      EXPECT_LT(distance_from_identity(forward), 1e-12) << dim << " " << rounds;
      for (int i = 0; i < dim; i += 7) {
        std::vector<double> unit(dim, 0.0);
        unit[i] = 1;
        rotation.inverse(unit);
        for (int j = 0; j < dim; ++j) EXPECT_NEAR(unit[j], forward[j][i], 1e-13) << dim;
      }
    }
}

TEST(Rotation, WithoutSignsIsTheMatrixAlone) {
  std::vector<double> x(128, 1.0);
  Rotation::without_signs(128).apply(x);
  EXPECT_NEAR(x[0], std::sqrt(128.0), 1e-12);
  for (int i = 1; i < 128; ++i) EXPECT_NEAR(x[i], 0, 1e-12);
}

// Every entry is +-1/sqrt(d) after one round: the core really is a Hadamard matrix.
TEST(Rotation, OneRoundSpreadsAUnitVectorEvenly) {
  for (const int dim : rotation_sizes())
    for (const auto& column : columns(Rotation(dim, 1, 11)))
      for (const double x : column) ASSERT_NEAR(std::abs(x), 1 / std::sqrt(static_cast<double>(dim)), 1e-12) << dim;
}

TEST(Rotation, InverseUndoesApply) {
  Random random(1);
  for (const int dim : rotation_sizes())
    for (const int rounds : {1, 2}) {
      const Rotation rotation(dim, rounds, random());
      const Vector x = gaussian(random, dim);
      std::vector<double> there(x.begin(), x.end()), back(x.begin(), x.end());
      rotation.apply(there), rotation.inverse(there);
      rotation.inverse(back), rotation.apply(back);
      for (int i = 0; i < dim; ++i) {
        EXPECT_NEAR(there[i], x[i], 1e-12) << dim;
        EXPECT_NEAR(back[i], x[i], 1e-12) << dim;
      }
    }
}

TEST(Rotation, SeedDecides) {
  for (const int dim : {64, 80, 128}) {
    const auto signs = [dim](int rounds, uint64_t seed) {
      const Rotation rotation(dim, rounds, seed);
      return std::vector<float>(rotation.signs().begin(), rotation.signs().end());
    };
    EXPECT_EQ(signs(2, 7), signs(2, 7));
    EXPECT_NE(signs(2, 7), signs(2, 8));
    EXPECT_NE(signs(2, 0), signs(2, uint64_t{1} << 63));
    const std::vector<float> both = signs(2, 7);
    EXPECT_NE(std::vector<float>(both.begin(), both.begin() + dim), std::vector<float>(both.begin() + dim, both.end()));
    EXPECT_LT(std::abs(std::accumulate(both.begin(), both.end(), 0.0f)), 4 * std::sqrt(2.0f * dim)) << "about as many of either sign";
  }
}

}  // namespace
}  // namespace tersor::codec
