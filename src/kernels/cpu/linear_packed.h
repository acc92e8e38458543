// Products with weights in a layout made for them: 16 weight rows side by side, so that nothing is summed across lanes.
//
// Packed layout. 16 weight rows are a panel; panels follow one another, and a panel is one stream.
//  Affine codes: one record a group of codes (32, 64 or 128 of each row). A record holds its units of 32 codes a row, then 16 scales,
//    then 16 biases, in their own type.
//  mxfp4, mxfp8: one record four groups of 32 codes (the last one fewer): four times 16 scales of a byte, then a unit for each group.
//  Dense: number k of the 16 rows, for each k; the panel is filled up to whole lines of 64 bytes.
// A unit is made of bit planes of 8, 4, 2 or 1 bits (3 = 2+1, 5 = 4+1, 6 = 4+2, low bits first), each a run of 64-byte rows: 16
// lanes (weight rows) of 4 bytes. Field f (of 8/bits) of row v belongs to quad v * (8/bits) + f; byte j of quad q is code 4q + j.
// Codes, scales, biases and numbers are kept exactly, with one exception: a group of mxfp8 that holds a NaN gets the scale NaN, so that
// kernels need not look for it. The last panel is filled up with zeros.
//
// Integer arithmetic. A group of activations becomes 16-bit integers with one scale: x ~ d * X, |X| <= 32639, d = max|x| / 32639. A
// group's sum of code * X (of mxfp4: of twice the code's value) is an exact 32-bit integer on every SIMD target; scales and biases meet
// it in float. The rounding of X is at most d / 2, so a result differs from the float product by at most
// max|x| / 65278 * |scale| * sum of codes, summed over the groups, besides float rounding. A group with an infinity or NaN makes the
// result NaN.
// Float arithmetic. Codes become floats exactly and are multiplied with x as it is; a group's sum meets its scale in float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear.h"

namespace tersor::kernels {

constexpr size_t kPackedRows = 16;

struct PackedMatrix {
  const uint8_t* data = nullptr;  // 64-byte aligned
  int bits = 0, group = 0;        // 0: dense
  Dtype type = Dtype::f16;        // of affine scales and biases, or of a dense matrix's numbers
  size_t out = 0, in = 0;
  Coding coding = Coding::affine;
  bool integers = true;  // the arithmetic: affine codes and mxfp4 take either, dense numbers and mxfp8 floats

  size_t panels() const { return (out + kPackedRows - 1) / kPackedRows; }
  size_t groups() const { return bits ? in / static_cast<size_t>(group) : 0; }
  size_t unit_bytes() const { return 64 * static_cast<size_t>(bits); }
  size_t units() const { return static_cast<size_t>(group) / 32; }  // of a group
  size_t panel_bytes() const;
  size_t bytes() const { return panels() * panel_bytes(); }
  /// Where the first unit of a group and its 16 scales lie in a panel; biases of affine codes follow their scales.
  size_t units_at(size_t g) const;
  size_t scales_at(size_t g) const;
  /// Affine codes: from one group to the next.
  size_t record_bytes() const { return units() * unit_bytes() + 2 * kPackedRows * size_of(type); }
};

/// The packed shape of a matrix (data unset). Scales and biases of unlike types are kept as f32. integers: wherever the format allows.
PackedMatrix packed_shape(const LinearMatrix& matrix, bool integers);
/// Writes one panel (panel_bytes()) of it.
void pack_panel(const LinearMatrix& matrix, size_t panel, uint8_t* to);
/// Row `row` as floats [in].
void unpack_row(const PackedMatrix& matrix, size_t row, float* out);

/// Whether both take the same prepared activations.
bool packed_alike(const PackedMatrix& a, const PackedMatrix& b);
/// Bytes one row of activations takes once prepared.
size_t packed_prepared_bytes(const PackedMatrix& matrix);
/// Bytes of a prepared row that packed_multiply goes through before it returns to them.
size_t packed_pass_bytes(const PackedMatrix& matrix);
/// Prepares `rows` rows of x [rows, in], contiguous, into `prepared` (64-byte aligned).
void packed_prepare(const PackedMatrix& matrix, Dtype x_type, const void* x, size_t rows, void* prepared);
/// out[r * ldo + i] = x row r times weight row 16 * panel + i, for r < rows and i < 16 * panels. Rows beyond matrix.out come out as 0;
/// ldo and out are multiples of 16 floats and 64 bytes.
void packed_multiply(const PackedMatrix& matrix, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo);

}  // namespace tersor::kernels
