// Codes of rotated vectors: tables of levels, the nearest one, and the scalar that goes with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "codec/scalar.h"
#include "tersor/codec.h"

namespace tersor::codec {

/// The Lloyd-Max book on its grid (codec/books.h).
LevelTable lloyd_max_table(int dim, int bits);

/// -1 and 1, on the grid.
const LevelTable& sign_table();
/// A rising book on a grid of odd integers up to grid_max(bits), its thresholds midpoints.
LevelTable table_on_grid(std::span<const double> levels, int bits);

inline float cleaned(float x) { return std::isnan(x) ? 0.0f : std::clamp(x, -kInputMax, kInputMax); }
inline std::vector<double> cleaned(std::span<const float> x) {
  std::vector<double> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](float v) { return static_cast<double>(cleaned(v)); });
  return y;
}
inline double square_of(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return sum;
}

/// Nearest level; a value on a threshold takes the lower one.
inline Code nearest(std::span<const float> thresholds, float y) {
  return static_cast<Code>(std::lower_bound(thresholds.begin(), thresholds.end(), y) - thresholds.begin());
}

/// What makes the numbers of y of about unit variance; 0 for the zero vector.
inline double unit_variance(std::span<const double> y) {
  const double norm2 = square_of(y);
  return norm2 > 0 ? std::sqrt(static_cast<double>(y.size()) / norm2) : 0;
}

/// The scalar of y and the levels of its codes, as stored. `rule` must not be automatic.
float level_scalar(ScalarRule rule, std::span<const double> y, std::span<const Code> codes, std::span<const float> levels);

/// The rule that `automatic` stands for.
constexpr ScalarRule resolved(ScalarRule rule, Role role) {
  if (rule != ScalarRule::automatic) return rule;
  return role == Role::keys ? ScalarRule::unbiased : ScalarRule::least_squares;
}

}  // namespace tersor::codec
