// Lloyd-Max quantisers of symmetric densities.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "codec/density.h"

namespace tersor::codec {

// The positive half of a symmetric quantiser: levels c[0] < c[1] < ..., cells cut at the midpoints, the first cell starting at 0.
// DensityT: symmetric, with operator()(t), end() and a function moments(density, lo, hi).
template <class DensityT>
class HalfQuantiser {
 public:
  HalfQuantiser(const DensityT& density, int count) : density_(density), c_(count), cells_(count) { start(); }
  /// Begins at these levels rather than at the asymptotically best ones.
  HalfQuantiser(const DensityT& density, std::vector<double> levels) : density_(density), c_(std::move(levels)), cells_(c_.size()) {}

  // Newton on "each level is its cell's centroid", whose Jacobian is tridiagonal; Lloyd's iteration first, to come close.
  void solve() {
    for (int step = 0; step < kLloydSteps; ++step) lloyd();
    for (int step = 0; step < 40 && newton() > 1e-14;) ++step;
  }
  double distortion() {
    measure();
    double sum = 0;
    for (size_t i = 0; i < c_.size(); ++i) sum += cells_[i].second - 2 * c_[i] * cells_[i].first + c_[i] * c_[i] * cells_[i].mass;
    return 2 * sum;
  }
  const std::vector<double>& levels() const { return c_; }

 private:
  static constexpr int kLloydSteps = 100;

  double edge(size_t i) const { return i == 0 ? 0 : i == c_.size() ? density_.end() : (c_[i - 1] + c_[i]) / 2; }
  double centroid(size_t i) const { return cells_[i].first / cells_[i].mass; }
  void measure() {
    for (size_t i = 0; i < c_.size(); ++i) cells_[i] = moments(density_, edge(i), edge(i + 1));
  }
  // The asymptotically optimal point density is the cube root of the density.
  void start() {
    constexpr int kGrid = 4000;
    std::vector<double> cumulated(kGrid + 1, 0.0);
    const double step = density_.end() / kGrid;
    for (int i = 0; i < kGrid; ++i) cumulated[i + 1] = cumulated[i] + std::cbrt(density_((i + 0.5) * step));
    for (size_t k = 0, i = 0; k < c_.size(); ++k) {
      const double target = cumulated[kGrid] * (k + 0.5) / c_.size();
      while (i < kGrid && cumulated[i + 1] < target) ++i;
      c_[k] = (i + 0.5) * step;
    }
  }
  void lloyd() {
    measure();
    for (size_t i = 0; i < c_.size(); ++i) c_[i] = centroid(i);
  }
  double newton() {
    measure();
    const size_t n = c_.size();
    std::vector<double> diagonal(n, -1.0), lower(n, 0.0), upper(n, 0.0), step(n);
    for (size_t i = 0; i < n; ++i) {
      step[i] = centroid(i) - c_[i];
      if (i + 1 < n) upper[i] = density_(edge(i + 1)) * (edge(i + 1) - centroid(i)) / cells_[i].mass / 2;
      if (i > 0) lower[i] = density_(edge(i)) * (centroid(i) - edge(i)) / cells_[i].mass / 2;
      diagonal[i] += upper[i] + lower[i];
    }
    for (size_t i = 1; i < n; ++i) {  // Thomas algorithm
      const double factor = lower[i] / diagonal[i - 1];
      diagonal[i] -= factor * upper[i - 1];
      step[i] -= factor * step[i - 1];
    }
    double largest = 0;
    for (size_t i = n; i-- > 0;) {
      step[i] = (step[i] - (i + 1 < n ? upper[i] * step[i + 1] : 0)) / diagonal[i];
      c_[i] -= step[i];
      largest = std::max(largest, std::abs(step[i]));
    }
    return largest;
  }

  DensityT density_;
  std::vector<double> c_;
  std::vector<Moments> cells_;
};

}  // namespace tersor::codec
