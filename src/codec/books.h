// Lloyd-Max codebooks of TurboQuant (arXiv 2504.19874, section 3.1), computed rather than tabulated, for every head size.
#pragma once

#include <cstdint>
#include <vector>

namespace tersor::codec {

struct Book {
  std::vector<double> levels;  // 2^bits, rising, symmetric; for coordinates scaled to unit variance
  double distortion = 0;       // E[(y - Q(y))^2], which is E||u - u_hat||^2 of a unit vector
};

/// The quantiser of least mean squared error for one coordinate of sqrt(dim) * u, u uniform on the unit sphere of R^dim.
/// dim >= 4, bits 1..8. Cached; thread-safe.
const Book& lloyd_max_book(int dim, int bits);

/// A book whose levels lie on an integer grid, so that integer dot products and byte tables can hold them: level[i] = grid[i] * step.
struct GridBook {
  std::vector<int16_t> grid;  // 2^bits odd integers, rising, symmetric, none beyond grid_max(bits)
  double step = 0;
  double distortion = 0;  // as Book's
};

/// Largest magnitude on the grid: up to 4 bits a code the levels are bytes (half-integers from -127.5 to 127.5), above that they take
/// 10 bits, which keeps the loss below 1 % of the distortion.
constexpr int grid_max(int bits) { return bits <= 4 ? 255 : 1023; }

/// The Lloyd-Max book moved to the grid, step and integers chosen for the least distortion. Cached; thread-safe.
const GridBook& grid_book(int dim, int bits);

}  // namespace tersor::codec
