// Means with their standard errors, and their comparison with the reference's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace tersor::codec {

class Mean {
 public:
  void add(double x) { ++n_, sum_ += x, squares_ += x * x; }
  double value() const { return sum_ / n_; }
  double error() const { return std::sqrt(std::max(0.0, squares_ / n_ - value() * value()) / (n_ - 1)); }

 private:
  double n_ = 0, sum_ = 0, squares_ = 0;
};

/// Standard errors that a difference of two sample means may have. With about a thousand comparisons in all tests, one beyond four is
/// expected every twenty choices of seeds; the seeds are fixed.
inline constexpr double kErrors = 4;

/// theirs: {"mean", "se"}. `slack`: what is known to differ, absolute.
inline void expect_same(const Mean& ours, const nlohmann::json& theirs, double slack = 0) {
  const double se = theirs["se"];
  EXPECT_NEAR(ours.value(), theirs["mean"].get<double>(), kErrors * std::hypot(ours.error(), se) + slack);
}

}  // namespace tersor::codec
