// Flat runs of codes: packing into bits and back, and the nearest of a few levels and back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Bytes of n packed codes: whole 32-bit words.
constexpr size_t packed_bytes(size_t n, int bits) { return (n * static_cast<size_t>(bits) + 31) / 32 * 4; }

/// Codes of `bits` bits, 1 to 8, one after the other, least significant bits first, as MLX packs quantised weights (codec/mlx_format.h is
/// the plain reference). Bits of a code above these are ignored; bits behind the last code are zero. Runs of a multiple of 32 codes can be
/// packed one by one.
void pack_codes(const uint8_t* codes, size_t n, int bits, uint8_t* packed);
void unpack_codes(const uint8_t* packed, size_t n, int bits, uint8_t* codes);

/// The nearest of rising levels: how many of their `count` - 1 thresholds, the midpoints, are below a number (NaN: 0); count: 2 to 256.
void quantise_levels(const float* x, size_t n, const float* thresholds, int count, uint8_t* codes);
/// levels[code]; `levels` has `count` numbers and codes are below that.
void dequantise_levels(const uint8_t* codes, size_t n, const float* levels, int count, float* x);

}  // namespace tersor::kernels
