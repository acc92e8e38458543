#include "codec/rvq_books.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "codec/books.h"
#include "codec/density.h"
#include "codec/half_quantiser.h"

namespace tersor::codec {
namespace {

// What a first stage leaves, over all its cells.
class PooledResidual {
 public:
  PooledResidual(const Density& density, std::vector<double> levels) : density_(density), levels_(std::move(levels)) {}
  double end() const { return density_.end() - levels_.back(); }
  double operator()(double t) const {
    double sum = 0;
    for (size_t i = 0; i < levels_.size(); ++i)
      if (const double at = levels_[i] + t; at >= edge(i) && at < edge(i + 1)) sum += density_(at);
    return sum;
  }
  Moments between(double lo, double hi) const {
    Moments sum;
    for (size_t i = 0; i < levels_.size(); ++i) {
      const double c = levels_[i], low = std::max(edge(i), c + lo), high = std::min(edge(i + 1), c + hi);
      if (low >= high) continue;
      const Moments part = moments(density_, low, high);
      sum.mass += part.mass, sum.first += part.first - c * part.mass;
      sum.second += part.second - 2 * c * part.first + c * c * part.mass;
    }
    return sum;
  }

 private:
  double edge(size_t i) const {
    return i == 0 ? -density_.end() : i == levels_.size() ? density_.end() : (levels_[i - 1] + levels_[i]) / 2;
  }
  Density density_;
  std::vector<double> levels_;
};

Moments moments(const PooledResidual& residual, double lo, double hi) { return residual.between(lo, hi); }

std::vector<double> mirrored(const std::vector<double>& positive) {
  std::vector<double> all;
  for (size_t i = positive.size(); i-- > 0;) all.push_back(-positive[i]);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

RvqBooks make_sequential(int dim, int bits1, int bits2) {
  const Book& first = lloyd_max_book(dim, bits1);
  // The levels of a Gaussian residual are where Lloyd's iteration begins.
  constexpr int kGaussianDim = 4096;
  const auto& shape = lloyd_max_book(kGaussianDim, bits2).levels;
  std::vector<double> start(shape.begin() + static_cast<std::ptrdiff_t>(shape.size() / 2), shape.end());
  for (double& level : start) level *= std::sqrt(first.distortion);
  HalfQuantiser<PooledResidual> half(PooledResidual(Density(dim), first.levels), start);
  half.solve();
  return {first.levels, mirrored(half.levels()), half.distortion()};
}

// Gaussian elimination of a symmetric positive definite system, in place.
void solve(std::vector<double>& a, std::vector<double>& b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k)
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (size_t j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
      b[i] -= factor * b[k];
    }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) b[i] -= a[i * n + j] * b[j];
    b[i] /= a[i * n + i];
  }
}

class JointBooks {
 public:
  JointBooks(int dim, const RvqBooks& start) : density_(dim), books_(start), order_(start.first.size() * start.second.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }
  RvqBooks solve() {
    RvqBooks best = books_;
    measure();
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0 && best.distortion - books_.distortion < 1e-13) break;
      best = books_;
      improve();
      measure();
    }
    return best;
  }

 private:
  static constexpr int kSteps = 3000;

  double sum(size_t cell) const { return books_.first[cell / books_.second.size()] + books_.second[cell % books_.second.size()]; }

  // Moments of the nearest-sum cells, and the distortion.
  void measure() {
    std::sort(order_.begin(), order_.end(), [this](size_t a, size_t b) { return sum(a) < sum(b); });
    cells_.assign(order_.size(), {});
    books_.distortion = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      const double level = sum(order_[i]);
      const double low = i == 0 ? -density_.end() : (sum(order_[i - 1]) + level) / 2;
      const double high = i + 1 == order_.size() ? density_.end() : (level + sum(order_[i + 1])) / 2;
      if (low >= high) continue;
      const Moments cell = moments(density_, low, high);
      cells_[order_[i]] = cell;
      books_.distortion += cell.second - 2 * level * cell.first + level * level * cell.mass;
    }
  }
  // The books of least distortion for the cells as they are.
  void improve() {
    const size_t k1 = books_.first.size(), k2 = books_.second.size(), n = k1 + k2;
    std::vector<double> a(n * n, 0.0), b(n, 0.0);
    for (size_t i = 0; i < k1; ++i)
      for (size_t j = 0; j < k2; ++j) {
        const Moments& cell = cells_[i * k2 + j];
        a[i * n + i] += cell.mass, a[(k1 + j) * n + k1 + j] += cell.mass;
        a[i * n + k1 + j] += cell.mass, a[(k1 + j) * n + i] += cell.mass;
        b[i] += cell.first, b[k1 + j] += cell.first;
      }
    for (size_t i = 0; i < n; ++i) a[i * n + i] += 1e-12;  // a constant can move from one book to the other
    codec::solve(a, b);
    for (size_t i = 0; i < k1; ++i) books_.first[i] = (b[i] - b[k1 - 1 - i]) / 2;
    for (size_t j = 0; j < k2; ++j) books_.second[j] = (b[k1 + j] - b[k1 + k2 - 1 - j]) / 2;
  }

  Density density_;
  RvqBooks books_;
  std::vector<size_t> order_;
  std::vector<Moments> cells_;
};

RvqBooks make_joint(int dim, int bits1, int bits2) { return JointBooks(dim, sequential_rvq_books(dim, bits1, bits2)).solve(); }

template <auto kMake>
const RvqBooks& cached(int dim, int bits1, int bits2) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, int>, RvqBooks> books;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(dim, bits1, bits2);
  const auto found = books.find(key);
  return found != books.end() ? found->second : books.emplace(key, kMake(dim, bits1, bits2)).first->second;
}

}  // namespace

const RvqBooks& sequential_rvq_books(int dim, int bits1, int bits2) { return cached<make_sequential>(dim, bits1, bits2); }
const RvqBooks& joint_rvq_books(int dim, int bits1, int bits2) { return cached<make_joint>(dim, bits1, bits2); }

}  // namespace tersor::codec
