#include "codec/books.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <utility>

namespace tersor::codec {
namespace {

// Density of one coordinate of sqrt(dim) * u: proportional to (1 - t^2/dim)^((dim - 3) / 2) on |t| <= sqrt(dim).
class Density {
 public:
  explicit Density(int dim) : dim_(dim), power_((dim - 3) / 2.0), end_(std::min(std::sqrt(static_cast<double>(dim)), kFar)) {
    log_norm_ = std::lgamma(dim / 2.0) - std::lgamma((dim - 1) / 2.0) - 0.5 * std::log(M_PI * dim);
  }
  double end() const { return end_; }
  double operator()(double t) const {
    const double u = 1 - t * t / dim_;
    return u > 0 ? std::exp(log_norm_ + power_ * std::log(u)) : 0.0;
  }

 private:
  static constexpr double kFar = 9;  // beyond 9 sigma the mass is below 1e-18
  double dim_, power_, end_, log_norm_ = 0;
};

struct Moments {
  double mass = 0, first = 0, second = 0;
};

// Gauss-Legendre nodes and weights on [-1, 1] by Newton's iteration on the Legendre polynomial.
template <int N>
std::array<std::pair<double, double>, N> gauss_legendre() {
  std::array<std::pair<double, double>, N> rule;
  for (int i = 0; i < N; ++i) {
    double x = std::cos(M_PI * (i + 0.75) / (N + 0.5)), slope = 1;
    for (int step = 0; step < 100; ++step) {
      double p0 = 1, p1 = x;
      for (int k = 2; k <= N; ++k) p0 = std::exchange(p1, ((2 * k - 1) * x * p1 - (k - 1) * p0) / k);
      slope = N * (x * p1 - p0) / (x * x - 1);
      const double move = p1 / slope;
      x -= move;
      if (std::abs(move) < 1e-15) break;
    }
    rule[i] = {x, 2 / ((1 - x * x) * slope * slope)};
  }
  return rule;
}

Moments moments(const Density& density, double lo, double hi) {
  static const auto rule = gauss_legendre<24>();
  const int parts = std::max(1, static_cast<int>(std::ceil((hi - lo) / 0.75)));
  const double half = (hi - lo) / parts / 2;
  Moments sum;
  for (int part = 0; part < parts; ++part)
    for (const auto& [x, w] : rule) {
      const double t = lo + (2 * part + 1) * half + half * x, mass = half * w * density(t);
      sum.mass += mass, sum.first += mass * t, sum.second += mass * t * t;
    }
  return sum;
}

// The positive half of a symmetric quantiser: levels c[0] < c[1] < ..., cells cut at the midpoints, the first cell starting at 0.
class HalfQuantiser {
 public:
  HalfQuantiser(const Density& density, int count) : density_(density), c_(count), cells_(count) { start(); }

  // Newton on "each level is its cell's centroid", whose Jacobian is tridiagonal; Lloyd's iteration first, to come close.
  void solve() {
    for (int step = 0; step < 100; ++step) lloyd();
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

  Density density_;
  std::vector<double> c_;
  std::vector<Moments> cells_;
};

Book make_book(int dim, int bits) {
  HalfQuantiser half(Density(dim), 1 << (bits - 1));
  half.solve();
  Book book;
  book.distortion = half.distortion();
  const auto& c = half.levels();
  for (size_t i = c.size(); i-- > 0;) book.levels.push_back(-c[i]);
  book.levels.insert(book.levels.end(), c.begin(), c.end());
  return book;
}

// Odd integers nearest to the positive levels when the highest becomes `top`; then the step of least distortion for them.
GridBook snap(const Density& density, std::span<const double> positive, int top) {
  GridBook book;
  const double step = positive.back() / top;
  for (const double level : positive) book.grid.push_back(static_cast<int16_t>(2 * std::lround((level / step - 1) / 2) + 1));
  // The cells belong to the unsnapped levels here: moving their edges is a second-order effect.
  double cross = 0, square = 0;
  const size_t n = positive.size();
  const auto edge = [&](auto&& level, size_t i) { return i == 0 ? 0 : i == n ? density.end() : (level(i - 1) + level(i)) / 2; };
  for (size_t i = 0; i < n; ++i) {
    const auto at = [&](size_t k) { return positive[k]; };
    const Moments cell = moments(density, edge(at, i), edge(at, i + 1));
    cross += book.grid[i] * cell.first, square += static_cast<double>(book.grid[i]) * book.grid[i] * cell.mass;
  }
  book.step = cross / square;
  for (size_t i = 0; i < n; ++i) {
    const auto at = [&](size_t k) { return book.grid[k] * book.step; };
    const Moments cell = moments(density, edge(at, i), edge(at, i + 1));
    book.distortion += 2 * (cell.second - 2 * at(i) * cell.first + at(i) * at(i) * cell.mass);
  }
  return book;
}

GridBook make_grid_book(int dim, int bits) {
  const Density density(dim);
  const auto& levels = lloyd_max_book(dim, bits).levels;
  const std::span<const double> positive(levels.begin() + levels.size() / 2, levels.end());
  GridBook best;
  for (int top = grid_max(bits); 4 * top > 3 * grid_max(bits); top -= 2) {
    GridBook book = snap(density, positive, top);
    if (best.grid.empty() || book.distortion < best.distortion) best = std::move(book);
    if (bits == 1) break;  // one magnitude fits any grid
  }
  const std::vector<int16_t> upper = best.grid;
  best.grid.assign(upper.rbegin(), upper.rend());
  for (int16_t& g : best.grid) g = static_cast<int16_t>(-g);
  best.grid.insert(best.grid.end(), upper.begin(), upper.end());
  return best;
}

// Computes each (dim, bits) once.
template <auto kMake>
const auto& cached(int dim, int bits) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, decltype(kMake(dim, bits))> books;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(dim, bits);
  const auto found = books.find(key);
  return found != books.end() ? found->second : books.emplace(key, kMake(dim, bits)).first->second;
}

}  // namespace

const Book& lloyd_max_book(int dim, int bits) { return cached<make_book>(dim, bits); }
const GridBook& grid_book(int dim, int bits) { return cached<make_grid_book>(dim, bits); }

}  // namespace tersor::codec
