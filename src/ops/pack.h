// Packing and scalar quantisation of flat arrays on all threads: kernels/cpu/pack.h in pieces.
#pragma once

#include <cstdint>
#include <span>

namespace tersor::ops {

/// Throw Error unless bits is 1 to 8 and the words are those that the codes need.
void pack_codes(std::span<const uint8_t> codes, int bits, std::span<uint32_t> words);
void unpack_codes(std::span<const uint32_t> words, int bits, std::span<uint8_t> codes);
/// Throw Error unless there are 2 to 256 levels (1 to 255 thresholds) and the arrays are of one size. Codes must be below the levels.
void quantise_levels(std::span<const float> x, std::span<const float> thresholds, std::span<uint8_t> codes);
void dequantise_levels(std::span<const uint8_t> codes, std::span<const float> levels, std::span<float> x);

}  // namespace tersor::ops
