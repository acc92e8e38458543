// Rows that the sketch of the outlier channels has.
#pragma once

#include <algorithm>

#include "tersor/codec.h"

namespace tersor::codec {

/// A quarter of the main sketch's, in whole bytes, and no fewer than the channels.
inline int qjl_outlier_rows(const Spec& spec) {
  return spec.outliers == 0 ? 0 : (std::max(spec.sketch_rows / 4, spec.outliers) + 7) / 8 * 8;
}

}  // namespace tersor::codec
