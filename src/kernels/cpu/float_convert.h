// Rows of f16, bf16 and f32 to and from float, vectorised.
#pragma once

#include <cstddef>

#include "tersor/base.h"

namespace tersor::kernels {

/// to[i] = from[i] for n numbers; `from` holds numbers of type `type` (2 or 4 bytes each, aligned to their size).
void to_float(Dtype type, const void* from, float* to, size_t n);

/// to[i] = from[i] rounded to nearest even; overflow becomes infinity, NaN stays NaN.
void from_float(Dtype type, const float* from, void* to, size_t n);

}  // namespace tersor::kernels
