// Products with affine-quantised weights by integer arithmetic, from a layout made for it.
//
// Packed layout. 16 weight rows are a panel; panels follow one another, and a panel is one stream of records, one record a group of
// codes (32, 64 or 128 of each row). A record holds its units of 32 codes a row, then 16 scales, then 16 biases, in their own type.
// A unit is made of bit planes of 8, 4, 2 or 1 bits (3 = 2+1, 5 = 4+1, 6 = 4+2, low bits first), each a run of 64-byte rows: 16
// lanes (weight rows) of 4 bytes. Field f (of 8/bits) of row v belongs to quad v * (8/bits) + f; byte j of quad q is code 4q + j.
// Codes, scales and biases are kept exactly; the last panel is filled up with zeros.
//
// Arithmetic. A group of activations becomes 16-bit integers with one scale: x ~ d * X, |X| <= 32639, d = max|x| / 32639. A group's
// sum of code * X is an exact 32-bit integer on every SIMD target; scales and biases meet it in float. The rounding of X is at most
// d / 2, so a result differs from the float product by at most max|x| / 65278 * |scale| * sum of codes, summed over the groups,
// besides float rounding. A group with an infinity or NaN makes the result NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear.h"

namespace tersor::kernels {

constexpr size_t kPackedRows = 16;

struct PackedMatrix {
  const uint8_t* data = nullptr;  // 64-byte aligned
  int bits = 0, group = 0;
  Dtype scale_type = Dtype::f16;  // of scales and biases
  size_t out = 0, in = 0;

  size_t panels() const { return (out + kPackedRows - 1) / kPackedRows; }
  size_t groups() const { return in / static_cast<size_t>(group); }
  size_t unit_bytes() const { return 64 * static_cast<size_t>(bits); }
  size_t record_bytes() const { return static_cast<size_t>(group) / 32 * unit_bytes() + 2 * kPackedRows * size_of(scale_type); }
  size_t panel_bytes() const { return groups() * record_bytes(); }
  size_t bytes() const { return panels() * panel_bytes(); }
};

/// The packed shape of a quantised matrix (data unset). Scales and biases of unlike types are kept as f32.
PackedMatrix packed_shape(const LinearMatrix& matrix);
/// Writes one panel (panel_bytes()) of it.
void pack_panel(const LinearMatrix& matrix, size_t panel, uint8_t* to);
/// Row `row` as floats [in]: scale * code + bias.
void unpack_row(const PackedMatrix& matrix, size_t row, float* out);

/// Bytes one row of activations takes once prepared.
size_t packed_prepared_bytes(const PackedMatrix& matrix);
/// Prepares `rows` rows of x [rows, in], contiguous, into `prepared` (64-byte aligned).
void packed_prepare(const PackedMatrix& matrix, Dtype x_type, const void* x, size_t rows, void* prepared);
/// out[r * ldo + i] = x row r times weight row 16 * panel + i, for r < rows and i < 16 * panels. Rows beyond matrix.out come out as 0;
/// ldo and out are multiples of 16 floats and 64 bytes.
void packed_multiply(const PackedMatrix& matrix, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo);

}  // namespace tersor::kernels
