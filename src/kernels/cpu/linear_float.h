// The float arithmetic of packed weights (linear_packed.h, which calls it).
#pragma once

#include "kernels/cpu/linear_packed.h"

namespace tersor::kernels {

size_t float_prepared_bytes(const PackedMatrix& matrix);
size_t float_pass_bytes(const PackedMatrix& matrix);
void float_prepare(const PackedMatrix& matrix, Dtype x_type, const void* x, size_t rows, void* prepared);
void float_multiply(const PackedMatrix& matrix, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo);

}  // namespace tersor::kernels
