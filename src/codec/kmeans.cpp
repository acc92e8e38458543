#include "codec/kmeans.h"

#include <algorithm>
#include <numeric>

#include "base/thread_pool.h"
#include "codec/random.h"

namespace tersor::codec {
namespace {

constexpr size_t kChunk = 1024;        // points of a parallel task
constexpr size_t kSeedingSample = 32;  // points a centroid that the seeding looks at

double squared_distance(const float* a, const float* b, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum;
}

class Trainer {
 public:
  Trainer(std::span<const float> points, int dim, int count, const KMeansOptions& options)
      : points_(points),
        n_(points.size() / dim),
        dim_(dim),
        count_(count),
        options_(options),
        state_(options.seed),
        nearest_(n_),
        errors_(n_) {}

  KMeans run() {
    seed();
    double before = 0;
    for (int iteration = 1; iteration <= options_.iterations; ++iteration) {
      const double error = assign();
      if (iteration > 1 && before - error < options_.least_gain * before) break;
      before = error;
      update();
      result_.iterations = iteration;
      if (options_.progress && !options_.progress(iteration, error)) break;
    }
    result_.error = assign();
    result_.few_points = static_cast<int64_t>(n_) < kPointsPerCentroid * count_;
    return std::move(result_);
  }

 private:
  const float* point(size_t i) const { return &points_[i * dim_]; }
  float* centroid(size_t c) { return &result_.centroids[c * dim_]; }
  size_t drawn(size_t below) { return std::min(below - 1, static_cast<size_t>(uniform(state_) * static_cast<double>(below))); }

  // Each next centroid is a point drawn with a chance in proportion to its squared distance from those before.
  void seed() {
    result_.centroids.assign(static_cast<size_t>(count_) * dim_, 0.0f);
    std::vector<size_t> sample(std::min(n_, kSeedingSample * static_cast<size_t>(count_)));
    for (size_t i = 0; i < sample.size(); ++i) sample[i] = sample.size() == n_ ? i : drawn(n_);
    std::vector<double> distance(sample.size(), 0.0);
    size_t chosen = sample[drawn(sample.size())];
    for (int c = 0; c < count_; ++c) {
      std::copy_n(point(chosen), dim_, centroid(c));
      ThreadPool::instance().run((sample.size() + kChunk - 1) / kChunk, [&](size_t task, size_t) {
        for (size_t i = task * kChunk; i < std::min(sample.size(), (task + 1) * kChunk); ++i) {
          const double d = squared_distance(point(sample[i]), centroid(c), dim_);
          distance[i] = c == 0 ? d : std::min(distance[i], d);
        }
      });
      chosen = sample[drawn_by(distance)];
    }
  }
  size_t drawn_by(const std::vector<double>& weights) {
    double target = uniform(state_) * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i)
      if ((target -= weights[i]) < 0) return i;
    return drawn(weights.size());  // all points are centroids already
  }

  // Returns the mean squared error of a number.
  double assign() {
    const Nearest nearest(result_.centroids, dim_);
    std::vector<std::vector<float>> scratch(ThreadPool::instance().size(), std::vector<float>(count_));
    ThreadPool::instance().run((n_ + kChunk - 1) / kChunk, [&](size_t task, size_t worker) {
      for (size_t i = task * kChunk; i < std::min(n_, (task + 1) * kChunk); ++i) {
        nearest_[i] = nearest.of(point(i), scratch[worker]);
        errors_[i] = static_cast<float>(squared_distance(point(i), centroid(nearest_[i]), dim_));
      }
    });
    return std::accumulate(errors_.begin(), errors_.end(), 0.0) / static_cast<double>(points_.size());
  }

  void update() {
    std::vector<double> sums(result_.centroids.size(), 0.0);
    std::vector<int64_t> members(count_, 0);
    for (size_t i = 0; i < n_; ++i) {
      ++members[nearest_[i]];
      for (int d = 0; d < dim_; ++d) sums[static_cast<size_t>(nearest_[i]) * dim_ + d] += point(i)[d];
    }
    for (int c = 0; c < count_; ++c)
      for (int d = 0; d < dim_ && members[c] > 0; ++d)
        centroid(c)[d] = static_cast<float>(sums[static_cast<size_t>(c) * dim_ + d] / static_cast<double>(members[c]));
    repair(members);
  }
  // Empty clusters take the points that are farthest from their centroids.
  void repair(const std::vector<int64_t>& members) {
    const auto empty = static_cast<size_t>(std::count(members.begin(), members.end(), 0));
    if (empty == 0) return;
    std::vector<size_t> far(n_);
    std::iota(far.begin(), far.end(), size_t{0});
    const size_t wanted = std::min(empty, n_);
    std::partial_sort(far.begin(), far.begin() + static_cast<std::ptrdiff_t>(wanted), far.end(),
                      [&](size_t a, size_t b) { return errors_[a] != errors_[b] ? errors_[a] > errors_[b] : a < b; });
    size_t next = 0;
    for (int c = 0; c < count_ && next < wanted; ++c)
      if (members[c] == 0) std::copy_n(point(far[next++]), dim_, centroid(c)), ++result_.repaired;
  }

  std::span<const float> points_;
  size_t n_;
  int dim_, count_;
  const KMeansOptions& options_;
  uint64_t state_;
  std::vector<int> nearest_;
  std::vector<float> errors_;
  KMeans result_;
};

}  // namespace

Nearest::Nearest(std::span<const float> centroids, int dim)
    : count_(static_cast<int>(centroids.size()) / dim), dim_(dim), columns_(centroids.size()), half_squares_(count_) {
  for (int c = 0; c < count_; ++c) {
    double square = 0;
    for (int d = 0; d < dim; ++d) {
      const float v = centroids[static_cast<size_t>(c) * dim + d];
      columns_[static_cast<size_t>(d) * count_ + c] = v;
      square += static_cast<double>(v) * v;
    }
    half_squares_[c] = static_cast<float>(square / 2);
  }
}

// |x - c|^2 is least where |c|^2 / 2 - <x, c> is.
int Nearest::of(const float* x, std::span<float> scratch) const {
  std::copy(half_squares_.begin(), half_squares_.end(), scratch.begin());
  for (int d = 0; d < dim_; ++d) {
    const float v = x[d];
    const float* const column = &columns_[static_cast<size_t>(d) * count_];
    for (int c = 0; c < count_; ++c) scratch[c] -= v * column[c];
  }
  int best = 0;
  for (int c = 1; c < count_; ++c)
    if (scratch[c] < scratch[best]) best = c;
  return best;
}

KMeans kmeans(std::span<const float> points, int dim, int count, const KMeansOptions& options) {
  return Trainer(points, dim, count, options).run();
}

}  // namespace tersor::codec
