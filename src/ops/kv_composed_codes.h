// Blocks of a cache slab (codec/layout.h) in composed MLX operations: bytes to codes and numbers, and back.
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include <vector>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "ops/kv.h"
#include "tersor/ops.h"

namespace tersor::ops::composed {

/// Whole blocks of a compressed layout, by token.
struct CodeBlocks {
  std::vector<mx::array> codes;  // of each part, uint8 (uint16 above 8 bits) [B, H, tokens, padded dim]; indices [B, H, tokens, codes]
  /// As stored, uint16 or (exponents) uint8: [B, H, tokens, scalar rows], or by channel [B, H, groups of tokens, 2 * padded dim], scales
  /// before biases.
  mx::array scalars;
};

/// bytes: uint8 [B, H, blocks * block_bytes].
CodeBlocks unpack_blocks(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s);
mx::array pack_blocks(const codec::Layout& layout, const CodeBlocks& blocks, mx::StreamOrDevice s);

/// The same for `full`: [B, H, tokens, padded dim] in the storage type.
mx::array unpack_full(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s);
mx::array pack_full(const codec::Layout& layout, const mx::array& numbers, mx::StreamOrDevice s);

/// The 16-bit formats of codec/scalar.h: uint16 to float32 and back.
mx::array decode_norms(const mx::array& bits, mx::StreamOrDevice s);
mx::array encode_norms(const mx::array& values, mx::StreamOrDevice s);
mx::array decode_scales(const mx::array& bits, mx::StreamOrDevice s);
mx::array encode_scales(const mx::array& values, mx::StreamOrDevice s);

/// Powers of two from bytes.
mx::array decode_exponents(const mx::array& bytes, mx::StreamOrDevice s);

/// Stored vectors of whole blocks of any family: float32 [B, H, tokens, width], zero where the layout has no section.
/// codecs: one, or one a head.
mx::array decode_blocks(const codec::Layout& layout, const KvBasis::Codecs& codecs, const mx::array& bytes, int width,
                        mx::StreamOrDevice s);
/// Numbers of a stored vector in this role, of all slabs of a basis.
int stored_width(const KvFormat& format, codec::Role role);
/// The stored vectors of tokens [begin, end) of a slab in lanes: float32 [B, H, end - begin, stored_width].
mx::array decode_tokens(const KvSlab& slab, codec::Role role, int64_t begin, int64_t end, mx::StreamOrDevice s);
/// x [B, H, tokens, n] as numbers begin ... of rows of `width`.
mx::array in_section(const mx::array& x, int begin, int width, mx::StreamOrDevice s);

/// The group of every dimension [dim] (affine), for take().
mx::array group_of_dims(const codec::Layout& layout);

/// A StoredMap's matrices: float32 [heads or 1, in, out].
mx::array map_matrix(const codec::StoredMap& map);
/// [dim, dim] float32, orthogonal: rows x of numbers become x * matrix; the inverse is x * transpose(matrix). Cached.
mx::array rotation_matrix(const codec::Rotation& rotation);

}  // namespace tersor::ops::composed
