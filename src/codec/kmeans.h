// k-means: codebooks of short vectors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tersor::codec {

/// Fewer points a centroid than this leave a codebook that fits its training points better than others.
inline constexpr int64_t kPointsPerCentroid = 800;

struct KMeansOptions {
  int iterations = 30;       // at most
  double least_gain = 1e-4;  // an iteration that lowers the error by a smaller part is the last
  uint64_t seed = 0;
  /// Called after every iteration with its number, from 1, and the mean squared error of a number; false stops.
  std::function<bool(int iteration, double error)> progress;
};

struct KMeans {
  std::vector<float> centroids;  // [count][dim]
  double error = 0;              // mean squared error of a number of the training points
  int iterations = 0;
  int64_t repaired = 0;     // empty clusters that were given a point
  bool few_points = false;  // fewer than kPointsPerCentroid a centroid
};

/// points: [n][dim], n >= 1. Begins with the seeding of k-means++ on a sample. The same points, options and seed give the same
/// centroids whatever the number of threads.
KMeans kmeans(std::span<const float> points, int dim, int count, const KMeansOptions& options = {});

/// Centroids arranged for looking up the nearest one.
class Nearest {
 public:
  /// centroids: [count][dim].
  Nearest(std::span<const float> centroids, int dim);
  int count() const { return count_; }
  int dim() const { return dim_; }
  std::span<const float> columns() const { return columns_; }            // [dim][count]
  std::span<const float> half_squares() const { return half_squares_; }  // |c|^2 / 2 of each
  /// Index of the nearest centroid, the first of equals; `scratch` is count() numbers.
  int of(const float* x, std::span<float> scratch) const;

 private:
  int count_, dim_;
  std::vector<float> columns_;  // [dim][count]
  std::vector<float> half_squares_;
};

}  // namespace tersor::codec
