// Codebooks: found again where the data have them, the same for a seed, whole where clusters are empty.
#include "codec/kmeans.h"

#include <gtest/gtest.h>

#include <set>

#include "codec/rotation.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

TEST(KMeans, FindsSeparateClusters) {
  Random random(1);
  Vector points;
  for (int i = 0; i < 4000; ++i) {
    const Vector noise = gaussian(random, 3, 0.01f);
    for (int d = 0; d < 3; ++d)
      points.push_back(noise[d] + 10.0f * static_cast<float>(i % 16 >> d & 1) + static_cast<float>(i % 16 / 8 * 100));
  }
  const KMeans found = kmeans(points, 3, 16);
  EXPECT_LT(found.error, 2e-4);
  EXPECT_TRUE(found.few_points);
  std::set<int> corners;
  for (int c = 0; c < 16; ++c) {
    int corner = found.centroids[3 * c] > 50 ? 8 : 0;
    for (int d = 0; d < 3; ++d) corner |= (std::fmod(found.centroids[3 * c + d] + 5, 100.0f) > 10) << d;
    corners.insert(corner);
  }
  EXPECT_EQ(corners.size(), 16u);
}

TEST(KMeans, TheSeedDecides) {
  Random random(2);
  const Vector points = gaussian(random, 8000);
  KMeansOptions options;
  options.iterations = 5;
  const KMeans a = kmeans(points, 4, 32, options), b = kmeans(points, 4, 32, options);
  EXPECT_EQ(a.centroids, b.centroids);
  options.seed = 1;
  EXPECT_NE(kmeans(points, 4, 32, options).centroids, a.centroids);
}

TEST(KMeans, ErrorNeverRises) {
  Random random(3);
  const Vector points = gaussian(random, 20000);
  KMeansOptions options;
  std::vector<double> errors;
  options.progress = [&](int iteration, double error) {
    EXPECT_EQ(iteration, static_cast<int>(errors.size()) + 1);
    errors.push_back(error);
    return iteration < 8;
  };
  EXPECT_EQ(kmeans(points, 2, 64, options).iterations, 8);
  EXPECT_TRUE(std::is_sorted(errors.rbegin(), errors.rend()));
}

// Fewer distinct points than centroids: no cluster is left without a place, no number is lost.
TEST(KMeans, MoreCentroidsThanPointsIsNoCrash) {
  const Vector points = {0, 0, 1, 1, 2, 2};
  const KMeans found = kmeans(points, 2, 16);
  EXPECT_EQ(found.centroids.size(), 32u);
  EXPECT_EQ(found.error, 0);
  for (const float v : found.centroids) EXPECT_TRUE(v == 0 || v == 1 || v == 2);
}

TEST(KMeans, EmptyClustersAreRepaired) {
  Random random(4);
  Vector points(2000, 0.0f);  // half of the points are one point
  for (int i = 1000; i < 2000; ++i) points[i] = static_cast<float>(gaussian(random, 1)[0]);
  const KMeans found = kmeans(points, 1, 64);
  std::set<float> places(found.centroids.begin(), found.centroids.end());
  EXPECT_GE(places.size(), 62u);
  EXPECT_LT(found.error, 2e-3);
}

TEST(Nearest, TakesTheFirstOfEquals) {
  const Vector centroids = {1, 0, 0, 1, -1, 0, 0, -1};
  const Nearest nearest(centroids, 2);
  Vector scratch(4);
  const float middle[2] = {0, 0}, right[2] = {0.9f, 0.1f}, diagonal[2] = {-1, -1};
  EXPECT_EQ(nearest.of(middle, scratch), 0);
  EXPECT_EQ(nearest.of(right, scratch), 0);
  EXPECT_EQ(nearest.of(diagonal, scratch), 2);
}

TEST(Calibrate, SaysWhenThereAreFewVectors) {
  Random random(5);
  const Spec spec = Spec::parse("vecinfer:1,sub=4");
  EXPECT_EQ(advised_vectors(spec, 64), 800 * 16 / 16);
  EXPECT_NE(calibrate(spec, Role::values, 64, gaussian(random, 64 * 100)).warning, "");
  EXPECT_EQ(calibrate(spec, Role::values, 64, gaussian(random, 64 * 800)).warning, "");
  EXPECT_EQ(advised_vectors(Spec::parse("turboquant:2.5"), 64), 1);
  EXPECT_THROW(calibrate(spec, Role::values, 64, gaussian(random, 100)), Error);
  EXPECT_THROW(calibrate(spec, Role::values, 64, Vector()), Error);
}

TEST(Calibrate, SmoothingIsTheRootOfTheLargestKey) {
  Vector rows(64 * 3, 0.25f);
  rows[64 + 5] = -9, rows[5] = 4;
  for (int t = 0; t < 3; ++t) rows[64 * t + 6] = 0;
  const Calibration c = calibrate(Spec::parse("vecinfer:1,sub=4"), Role::keys, 64, rows).calibration;
  EXPECT_FLOAT_EQ(c.smoothing[5], 3);
  EXPECT_FLOAT_EQ(c.smoothing[6], 1) << "a dead channel needs no scaling";
  EXPECT_FLOAT_EQ(c.smoothing[7], 0.5f);
  EXPECT_FLOAT_EQ(c.mean[5], (4 - 9 + 0.25f) / 3);
  EXPECT_EQ(c.channels[0], 5);
}

// Smoothing and transform cancel between query and key: what is lost is the distance to the centroids, and no centroid is nearer.
TEST(VecInfer, ScoresAreThoseOfTheNearestCentroids) {
  Random random(6);
  for (const int dim : {64, 96, 256}) {
    const Spec spec = Spec::parse("vecinfer:1.5,sub=4");
    const Calibration& calibration = sample_calibration(spec, Role::keys, dim);
    const auto codec = Codec::make(spec, Role::keys, dim, Dtype::f16, &calibration);
    const Vector x = gaussian(random, dim, 3), query = gaussian(random, dim);
    std::vector<double> y(x.begin(), x.end()), q(query.begin(), query.end()), mapped(dim);
    smooth_key(Rotation::without_signs(dim), calibration.smoothing, y);
    codec->map_query(q, mapped);
    EXPECT_NEAR(std::inner_product(y.begin(), y.end(), mapped.begin(), 0.0), dot(x, query), 1e-9);
    std::vector<Code> codes(codec->codes());
    codec->encode(x, codes, {});
    const auto distance = [&](int part, int c) {
      double sum = 0;
      for (int d = 0; d < 4; ++d) sum += std::pow(y[4 * part + d] - calibration.centroids[4 * c + d], 2);
      return sum;
    };
    for (int part = 0; part < dim / 4; ++part)
      for (int c = 0; c < 64; ++c) EXPECT_LE(distance(part, codes[part]), distance(part, c) + 1e-5);
  }
}

// Under a codebook of 12 bits a code takes a byte and half of another.
TEST(VecInfer, TwelveBitCodesComeBack) {
  Random random(7);
  Calibration calibration;
  calibration.smoothing = Vector(64, 1.0f);
  calibration.centroids = gaussian(random, 4096 * 8);
  const auto codec = Codec::make(Spec::parse("vecinfer:1.5,sub=8"), Role::values, 64, Dtype::f16, &calibration);
  const Vector x(calibration.centroids.begin() + 8 * 4000, calibration.centroids.begin() + 8 * 4008);
  std::vector<Code> codes(8);
  codec->encode(x, codes, {});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], 4000 + i);
  EXPECT_EQ(roundtrip(*codec, x), x);
}

}  // namespace
}  // namespace tersor::codec
