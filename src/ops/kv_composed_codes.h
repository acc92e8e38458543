// Blocks of a cache slab (codec/layout.h) in composed MLX operations: bytes to codes and numbers, and back.
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "tersor/ops.h"

namespace tersor::ops::composed {

/// Whole blocks of a compressed layout, by token.
struct CodeBlocks {
  mx::array codes;    // uint8 [B, H, tokens, padded dim]
  mx::array scalars;  // uint16 [B, H, tokens, scalar rows], as stored
};

/// bytes: uint8 [B, H, blocks * block_bytes].
CodeBlocks unpack_codes(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s);
mx::array pack_codes(const codec::Layout& layout, const CodeBlocks& blocks, mx::StreamOrDevice s);

/// The same for `full`: [B, H, tokens, padded dim] in the storage type.
mx::array unpack_full(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s);
mx::array pack_full(const codec::Layout& layout, const mx::array& numbers, mx::StreamOrDevice s);

/// The 16-bit formats of codec/scalar.h: uint16 to float32 and back.
mx::array decode_norms(const mx::array& bits, mx::StreamOrDevice s);
mx::array encode_norms(const mx::array& values, mx::StreamOrDevice s);
mx::array decode_scales(const mx::array& bits, mx::StreamOrDevice s);
mx::array encode_scales(const mx::array& values, mx::StreamOrDevice s);

/// Stored (rotated) numbers of whole blocks of any family: float32 [B, H, tokens, dim].
mx::array decode_blocks(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s);

/// The group of every dimension [dim] (affine), for take().
mx::array group_of_dims(const codec::Layout& layout);

/// [dim, dim] float32, orthogonal: rows x of numbers become x * matrix; the inverse is x * transpose(matrix). Cached.
mx::array rotation_matrix(const codec::Rotation& rotation);

}  // namespace tersor::ops::composed
