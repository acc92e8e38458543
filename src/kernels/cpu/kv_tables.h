// Attention over codebook indices of up to 8 bits (vecinfer) by tables of bytes: of partial scores for every query row, and of the codebook
// itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/layout.h"

namespace tersor::kernels {

/// More rows share a tile of decoded floats instead, since each has tables of its own; and tables that do not stay in the second-level
/// cache are not worth their reading.
inline constexpr size_t kTableRows = 8, kMostTableBytes = size_t{1} << 18;

/// Bytes of one plane of a table: what one register holds, or more.
inline size_t table_entries(const codec::Layout& layout) { return size_t{1} << std::max(6, layout.bits); }
/// Bytes of one row's tables.
inline size_t table_row_bytes(const codec::Layout& layout) { return static_cast<size_t>(layout.codes) * 2 * table_entries(layout); }
inline size_t book_bytes(const codec::Layout& layout) { return static_cast<size_t>(layout.codec->spec().sub) * 2 * table_entries(layout); }

/// Sums of a byte for each code stay below 2^16.
inline bool fits_tables(const codec::Layout& layout) { return layout.indexed() && layout.bits <= 8 && layout.codes <= 256; }
inline bool fits_tables(const codec::Layout& layout, size_t rows) {
  return fits_tables(layout) && rows <= kTableRows &&
         (layout.role == codec::Role::values || rows * table_row_bytes(layout) <= kMostTableBytes);
}

/// Partial scores of query rows: score = base + step * sum over sub-vectors of table[index], unsigned 16-bit integers. bytes:
/// [row][code][low bytes, high bytes][table_entries].
struct TableRows {
  uint8_t* bytes = nullptr;
  float *steps = nullptr, *bases = nullptr;  // [row]
};

/// A codebook's numbers: middle + step * integer of 14 bits. bytes: [number of a sub-vector][low bytes, high bytes][table_entries].
struct IntegerBook {
  uint8_t* bytes = nullptr;
  float* scale = nullptr;  // step, middle
};

}  // namespace tersor::kernels
