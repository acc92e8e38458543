// The two books of two-stage scalar quantisation: a coordinate is c1[i] + c2[j], i from b1 bits and j from b2.
#pragma once

#include <vector>

namespace tersor::codec {

struct RvqBooks {
  std::vector<double> first, second;  // rising, symmetric
  double distortion = 0;              // as Book's, of the encoding that belongs to the books
};

/// First the Lloyd-Max book, then the Lloyd-Max book of what it leaves, one for all cells; encoded one after the other. Cached.
const RvqBooks& sequential_rvq_books(int dim, int bits1, int bits2);

/// Both books refined together, encoded to the nearest sum: a local optimum, from the sequential books. Cached.
const RvqBooks& joint_rvq_books(int dim, int bits1, int bits2);

}  // namespace tersor::codec
