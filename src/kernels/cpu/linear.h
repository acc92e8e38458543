// Products of float rows with the rows of a dense or affine-quantised weight matrix, in float. Two ways:
//  few rows of x  (decode):  linear_prepare once, then linear_few_rows for ranges of weight rows; each weight is read once and
//                            decoded in registers;
//  many rows of x (prefill): linear_many_rows decodes panels of weights to float and multiplies them in tiles.
// Callers give all memory; every buffer of floats is 64-byte aligned. Results are plain float sums that a finish_* function turns
// into the output's type. Nothing throws or allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersor/base.h"

namespace tersor::kernels {

/// Row-major weights [out, in]. bits 2, 3, 4, 5, 6 or 8: codes packed LSB first over 32-bit words (rows start at a word), value =
/// scale * code + bias with one scale and bias for `group` (a multiple of 32 that divides `in`) codes of a row. bits 0: dense.
/// Of mxfp4 (4 bits) and mxfp8 (8 bits), groups of 32, scales are bytes and there are no biases; such a matrix can be packed
/// (linear_packed.h) and read (dequantize.h), but is not for the products declared here.
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

/// Most rows of x that linear_few_rows is meant for; it takes any number, but linear_many_rows is faster above.
constexpr size_t kLinearFewRows = 8;
/// Most weight rows of one linear_many_rows call.
constexpr size_t kLinearPanel = 64;

/// Floats of the buffer that linear_prepare fills. Matrices of equal bits, group and in share one.
size_t linear_prepared_size(const LinearMatrix& matrix, size_t rows);
/// Brings x [rows, in] (rows contiguous) into the order in which linear_few_rows meets the codes, and sums it by groups.
void linear_prepare(const LinearMatrix& matrix, Dtype x_type, const void* x, size_t rows, float* prepared);

/// Floats of linear_few_rows' scratch.
size_t linear_few_rows_scratch(const LinearMatrix& matrix);
/// out[r * ldo + i] = x row r times weight row first + i, for i < count.
void linear_few_rows(const LinearMatrix& matrix, const float* prepared, size_t rows, size_t first, size_t count, float* out, size_t ldo,
                     float* scratch);

/// Floats of linear_many_rows' scratch.
size_t linear_many_rows_scratch(const LinearMatrix& matrix);
/// The same result from plain float rows x [rows, ldx], count <= kLinearPanel.
void linear_many_rows(const LinearMatrix& matrix, const float* x, size_t ldx, size_t rows, size_t first, size_t count, float* out,
                      size_t ldo, float* scratch);

/// sums[r * lds + i] += bias[i], for r < rows and i < n; `bias` points at numbers of type `type`.
void add_bias(float* sums, size_t lds, size_t rows, size_t n, Dtype type, const void* bias);
/// out[i] = sums[i] + residual[i], numbers of type `type`; `residual` may be null.
void finish_sum(Dtype type, const float* sums, const void* residual, void* out, size_t n);
/// out[i] = activation(gate[i]) * up[i].
void finish_gated(Dtype type, Activation activation, const float* gate, const float* up, void* out, size_t n);

}  // namespace tersor::kernels
