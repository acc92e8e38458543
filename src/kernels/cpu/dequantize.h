// Rows of a weight matrix as plain numbers.
#pragma once

#include "kernels/cpu/linear.h"

namespace tersor::kernels {

/// Row `row` of the matrix as matrix.in floats.
void dequantize_row(const LinearMatrix& matrix, size_t row, float* out);

}  // namespace tersor::kernels
