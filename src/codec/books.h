// Lloyd-Max codebooks of TurboQuant (arXiv 2504.19874, section 3.1), computed rather than tabulated, for every head size.
#pragma once

#include <vector>

namespace tersor::codec {

struct Book {
  std::vector<double> levels;  // 2^bits, rising, symmetric; for coordinates scaled to unit variance
  double distortion = 0;       // E[(y - Q(y))^2], which is E||u - u_hat||^2 of a unit vector
};

/// The quantiser of least mean squared error for one coordinate of sqrt(dim) * u, u uniform on the unit sphere of R^dim.
/// dim >= 4, bits 1..8. Cached; thread-safe.
const Book& lloyd_max_book(int dim, int bits);

}  // namespace tersor::codec
