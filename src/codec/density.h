// The density of a rotated coordinate and its integrals.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tersor::codec {

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
inline std::array<std::pair<double, double>, N> gauss_legendre() {
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

inline Moments moments(const Density& density, double lo, double hi) {
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

}  // namespace tersor::codec
