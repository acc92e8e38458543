// Random sketches for sign codes (arXiv 2406.03482): m rows of length about sqrt(dim), of which only the signs of products are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tersor/codec.h"

namespace tersor::codec {

struct Sketch {
  int rows, dim;
  std::vector<float> matrix;  // [rows][dim]
  /// E[sign(s u) (s q)] = constant * <u, q> for unit u.
  double constant;

  /// factor() * |x| * signs of S x: inner products with S q are those of x and q on average.
  double factor() const { return 1 / (constant * rows); }

  /// <s_row, x>, in double.
  double product(int row, std::span<const double> x) const {
    double sum = 0;
    for (int i = 0; i < dim; ++i) sum += static_cast<double>(matrix[static_cast<size_t>(row) * dim + i]) * x[i];
    return sum;
  }
  /// out += S^T y.
  void add_transposed(std::span<const double> y, std::span<double> out) const {
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < dim; ++i) out[i] += y[row] * static_cast<double>(matrix[static_cast<size_t>(row) * dim + i]);
  }
  /// Codes (1 where a product is not negative) and returns the factor that makes factor * <S q, signs> an unbiased <q, x>, which is
  /// |x| / (constant * rows).
  double encode(std::span<const double> x, std::span<Code> codes) const;
};

/// gaussian: independent normal numbers. orthogonal: blocks of `dim` rows, each sqrt(dim) times a random orthogonal matrix, the last block
/// cut short. Cached while in use.
std::shared_ptr<const Sketch> make_sketch(SketchKind kind, int rows, int dim, uint64_t seed);

}  // namespace tersor::codec
