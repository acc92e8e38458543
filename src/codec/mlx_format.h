// Quantised arrays as MLX stores them, byte for byte: what mx.quantize makes on a CPU.
//
// Codes are packed into 32-bit words, least significant bits first; those of 3, 5 and 6 bits run on from one word into the next. affine has
// a scale and a bias for each group in the array's own type; mxfp4 and mxfp8 have a byte (e8m0) for each 32 numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tersor/codec.h"

namespace tersor::codec {

/// Codes of `bits` bits to words and back; their number times bits is a multiple of 32.
std::vector<uint32_t> mlx_pack(std::span<const Code> codes, int bits);
std::vector<Code> mlx_unpack(std::span<const uint32_t> words, int bits);

struct MlxAffine {
  std::vector<Code> codes;
  std::vector<float> scales, biases;  // rounded to the array's type
};
/// x holds numbers of the type `dtype`, a multiple of `group` of them. Codes belong to the scale before it is rounded, as in MLX; a group
/// of the codec `affine` differs from it in that its scale and bias are rounded first (codec/affine.h).
MlxAffine mlx_affine(std::span<const float> x, int bits, int group, Dtype dtype);
/// scale * code + bias, with MLX's roundings to the array's type.
std::vector<float> mlx_affine_decode(const MlxAffine& quantised, int group, Dtype dtype);

}  // namespace tersor::codec
