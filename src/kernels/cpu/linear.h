// Weight matrices as models store them, and what follows a linear layer's sums. The products themselves: linear_packed.h.
// Callers give all memory. Nothing throws or allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersor/base.h"

namespace tersor::kernels {

/// Row-major weights [out, in]. bits 2, 3, 4, 5, 6 or 8: codes packed LSB first over 32-bit words (rows start at a word), value =
/// scale * code + bias with one scale and bias for `group` (a multiple of 32 that divides `in`) codes of a row. bits 0: dense.
/// Of mxfp4 (4 bits) and mxfp8 (8 bits), groups of 32, scales are bytes and there are no biases.
/// Such a matrix can be packed (linear_packed.h) and read (dequantize.h).
struct LinearMatrix {
  const void* weight = nullptr;
  const void* scales = nullptr;
  const void* biases = nullptr;
  Dtype weight_type = Dtype::f32;  // of a dense matrix
  Dtype scale_type = Dtype::f16, bias_type = Dtype::f16;
  int bits = 0, group = 0;
  size_t out = 0, in = 0;
  Coding coding = Coding::affine;
};

/// sums[r * lds + i] += bias[i], for r < rows and i < n; `bias` points at numbers of type `type`.
void add_bias(float* sums, size_t lds, size_t rows, size_t n, Dtype type, const void* bias);
/// out[i] = sums[i] + residual[i], numbers of type `type`; `residual` may be null.
void finish_sum(Dtype type, const float* sums, const void* residual, void* out, size_t n);
/// out[i] = activation(gate[i]) * up[i].
void finish_gated(Dtype type, Activation activation, const float* gate, const float* up, void* out, size_t n);

}  // namespace tersor::kernels
