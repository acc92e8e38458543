#include "codec/sketch.h"

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "codec/books.h"
#include "codec/random.h"

namespace tersor::codec {
namespace {

double row_product(const double* a, const double* b, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += a[i] * b[i];
  return sum;
}

// Rows of a random orthogonal matrix: normal numbers, made orthogonal one after the other, twice for full precision.
void orthogonalise(double* rows, int count, int dim) {
  for (int r = 0; r < count; ++r) {
    double* const row = rows + static_cast<size_t>(r) * dim;
    for (int pass = 0; pass < 2; ++pass)
      for (int earlier = 0; earlier < r; ++earlier) {
        const double* const other = rows + static_cast<size_t>(earlier) * dim;
        const double overlap = row_product(row, other, dim);
        for (int i = 0; i < dim; ++i) row[i] -= overlap * other[i];
      }
    const double norm = std::sqrt(row_product(row, row, dim));
    for (int i = 0; i < dim; ++i) row[i] /= norm;
  }
}

std::shared_ptr<const Sketch> compute(SketchKind kind, int rows, int dim, uint64_t seed) {
  uint64_t state = seed ^ 0x736b65746368u;  // not the signs of the rotation of the same seed
  std::vector<double> matrix(static_cast<size_t>(rows) * dim);
  for (double& entry : matrix) entry = normal(state);
  double constant = std::sqrt(2 / M_PI);
  if (kind == SketchKind::orthogonal) {
    for (int first = 0; first < rows; first += dim)
      orthogonalise(&matrix[static_cast<size_t>(first) * dim], std::min(dim, rows - first), dim);
    for (double& entry : matrix) entry *= std::sqrt(static_cast<double>(dim));
    // sqrt(dim) E|u_1| of a unit vector, which is the level of the 1-bit book.
    constant = std::sqrt(dim / M_PI) * std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0));
  }
  return std::make_shared<const Sketch>(Sketch{rows, dim, std::vector<float>(matrix.begin(), matrix.end()), constant});
}

}  // namespace

double Sketch::encode(std::span<const double> x, std::span<Code> codes) const {
  double norm2 = 0;
  for (const double v : x) norm2 += v * v;
  for (int row = 0; row < rows; ++row) codes[row] = product(row, x) >= 0;
  return std::sqrt(norm2) / (constant * rows);
}

std::shared_ptr<const Sketch> make_sketch(SketchKind kind, int rows, int dim, uint64_t seed) {
  static std::mutex mutex;
  static std::map<std::tuple<SketchKind, int, int, uint64_t>, std::weak_ptr<const Sketch>> sketches;
  const std::lock_guard lock(mutex);
  auto& known = sketches[{kind, rows, dim, seed}];
  auto sketch = known.lock();
  if (!sketch) known = sketch = compute(kind, rows, dim, seed);
  return sketch;
}

}  // namespace tersor::codec
