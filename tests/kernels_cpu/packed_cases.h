// Packed copies of weight matrices, and the check of their products against plain sums in double.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/linear_packed.h"
#include "kernels_cpu/linear_cases.h"

namespace tersor::kernels {

// A packed copy of a matrix. Exactly as many bytes as the layout states, for the address sanitizer.
struct Packed {
  PackedMatrix matrix;
  Aligned memory;
  explicit Packed(const LinearMatrix& m, bool integers = true) : matrix(packed_shape(m, integers)), memory(matrix.bytes() / sizeof(float)) {
    auto* bytes = reinterpret_cast<uint8_t*>(memory.memory);
    for (size_t p = 0; p < matrix.panels(); ++p) pack_panel(m, p, bytes + p * matrix.panel_bytes());
    matrix.data = bytes;
  }
};

inline std::vector<float> multiply(const PackedMatrix& m, const Numbers& x, size_t rows, size_t panel, size_t panels) {
  Aligned prepared(rows * packed_prepared_bytes(m) / sizeof(float));
  packed_prepare(m, x.type, x.bytes.get(), rows, prepared.memory);
  const size_t ldo = panels * kPackedRows;
  Aligned out(rows * ldo);
  packed_multiply(m, prepared.memory, rows, panel, panels, out.memory, ldo);
  return {out.memory, out.memory + rows * ldo};
}

// What a result may be off by: in integers the rounding of x (half a step of its group, linear_packed.h), and in + 8 float roundings.
inline double tolerance(const Weights& w, const Packed& packed, const Numbers& x, size_t row, size_t weight_row) {
  const size_t in = w.matrix.in, group = packed.matrix.integers ? static_cast<size_t>(w.matrix.group) : in;
  double sum = 0;
  for (size_t begin = 0; begin < in; begin += group) {
    double most = 0, codes = 0, magnitude = 0;
    for (size_t k = begin; k < begin + group; ++k) {
      const double v = std::abs(x.values[row * in + k]), term = w.terms[weight_row * in + k];
      most = std::max(most, v), codes += term, magnitude += term * v;
    }
    sum += (packed.matrix.integers ? 1.001 * most / 65278 * codes : 0) + static_cast<double>(in + 8) * kEpsilon * magnitude;
  }
  return sum + 1e-37;
}

inline void check(const Weights& w, const Packed& packed, const Numbers& x, size_t rows) {
  const size_t in = w.matrix.in, panels = packed.matrix.panels(), ldo = panels * kPackedRows;
  const auto got = multiply(packed.matrix, x, rows, 0, panels);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < ldo; ++o) {
      double sum = 0;
      for (size_t k = 0; k < in && o < w.matrix.out; ++k) sum += w.worth[o * in + k] * x.values[r * in + k];
      ASSERT_NEAR(got[r * ldo + o], sum, o < w.matrix.out ? tolerance(w, packed, x, r, o) : 0)
          << "x row " << r << " of " << rows << ", weight row " << o;
    }
  }
}

// Two panels of 1024 columns times one row that is always the same.
inline std::vector<float> one_row(const PackedMatrix& m) {
  std::mt19937 rng(8);
  return multiply(m, Numbers(Dtype::f32, random_floats(rng, 1024, 1.0f)), 1, 0, 2);
}

// Results of several targets: equal but for `epsilons` float roundings of the largest number.
inline void expect_alike(const std::vector<std::vector<float>>& results, double epsilons) {
  double size = 0;
  for (const float v : results[0]) size = std::max<double>(size, std::abs(v));
  for (const auto& other : results)
    for (size_t i = 0; i < other.size(); ++i) EXPECT_NEAR(other[i], results[0][i], epsilons * kEpsilon * size);
}

}  // namespace tersor::kernels
