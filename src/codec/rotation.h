// The randomised Hadamard transform: an orthogonal map that spreads every vector's energy evenly over its coordinates.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor::codec {

/// y = (H / sqrt(d)) diag(s_rounds) ... (H / sqrt(d)) diag(s_1) x with H = H_core (x) H_2^k a Hadamard matrix of order d and
/// random signs s. One round maps sparse vectors to few distinct magnitudes; two rounds behave like a random rotation.
class Rotation {
 public:
  /// Throws Error when no Hadamard matrix of this order is built here.
  Rotation(int dim, int rounds, uint64_t seed);
  static bool supports(int dim);
  static std::string supported_sizes();

  int dim() const { return dim_; }
  int rounds() const { return static_cast<int>(signs_.size()) / dim_; }
  int core() const { return core_; }                                   // order of the core matrix: 1, 12, 20, ...
  int power() const { return dim_ / core_; }                           // the power of two beside it
  std::span<const float> signs() const { return signs_; }              // [rounds][dim], +1 or -1
  std::span<const float> core_matrix() const { return core_matrix_; }  // [core][core], +1 or -1, row-major

  /// Plain references in double; in place on dim numbers.
  void apply(std::span<double> x) const;
  void inverse(std::span<double> x) const;

 private:
  int dim_, core_;
  std::vector<float> signs_, core_matrix_;
};

}  // namespace tersor::codec
