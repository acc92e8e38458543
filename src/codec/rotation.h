// The randomised Hadamard transform: an orthogonal map that spreads every vector's energy evenly over its coordinates.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor::codec {

/// y = (H / sqrt(d)) diag(s_rounds) ... (H / sqrt(d)) diag(s_1) x with H = H_core (x) H_2^k and random signs s. H_core is a Hadamard
/// matrix of order 1, 12, 20, 28, 36, 44 or 60 where the size allows it; otherwise the orthogonal cosine transform of d's odd part.
/// One round maps sparse vectors to few distinct magnitudes; two rounds behave like a random rotation.
class Rotation {
 public:
  /// dim >= 1.
  Rotation(int dim, int rounds, uint64_t seed);
  /// One round with no signs: H / sqrt(d).
  static Rotation without_signs(int dim);
  /// Whether the core is a Hadamard matrix.
  static bool is_hadamard(int dim);

  int dim() const { return dim_; }
  int rounds() const { return static_cast<int>(signs_.size()) / dim_; }
  int core() const { return core_; }                                   // order of the core matrix: 1, 12, 20, ... or odd
  int power() const { return dim_ / core_; }                           // the power of two beside it
  std::span<const float> signs() const { return signs_; }              // [rounds][dim], +1 or -1
  std::span<const float> core_matrix() const { return core_matrix_; }  // [core][core], row-major, core times its inverse's transpose

  /// Plain references in double; in place on dim numbers.
  void apply(std::span<double> x) const;
  void inverse(std::span<double> x) const;

 private:
  int dim_, core_;
  std::vector<double> exact_core_;
  std::vector<float> signs_, core_matrix_;
};

}  // namespace tersor::codec
