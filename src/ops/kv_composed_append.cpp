// Appending to a cache in composed MLX operations: the blocks that the new tokens fall into are unpacked, changed and put back.
#include <mlx/ops.h>

#include <optional>
#include <vector>

#include "codec/scalar.h"
#include "ops/kv.h"
#include "ops/kv_composed_encode.h"
#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

using composed::CodeBlocks;

// What encodes keys, or values.
struct Side {
  const KvBasis::Codecs& codecs;
  const std::optional<codec::StoredMap>& map;
};

// [B, H, L, dim] float32, centred, cleaned and rotated.
mx::array stored_basis(const mx::array& x, const RowShape& shape, bool sanitise, const codec::Rotation* rotation,
                       const std::optional<mx::array>& centre, mx::StreamOrDevice s) {
  const auto i = [](int64_t n) { return static_cast<int>(n); };
  mx::array y = x;
  if (shape.tokens_major) { y = mx::swapaxes(mx::reshape(y, {i(shape.batch), i(shape.tokens), i(shape.heads), i(shape.dim)}, s), 1, 2, s); }
  y = mx::astype(y, mx::float32, s);
  if (centre) y = mx::subtract(y, mx::expand_dims(*centre, 2, s), s);
  if (sanitise) {
    y = mx::where(mx::isnan(y, s), mx::array(0.0f), y, s);
    y = mx::minimum(mx::maximum(y, mx::array(-codec::kInputMax), s), mx::array(codec::kInputMax), s);
  }
  return rotation ? mx::matmul(y, composed::rotation_matrix(*rotation), s) : y;
}

// Whole blocks with the rows of y put in from token `at` on.
mx::array with_tokens(const codec::Layout& layout, const Side& side, const mx::array& bytes, const mx::array& y, int at,
                      mx::StreamOrDevice s) {
  const auto put_at = [&](int first, const mx::array& all, const mx::array& rows) {
    return mx::slice_update(all, rows, mx::Shape{0, 0, first, 0},
                            mx::Shape{all.shape(0), all.shape(1), first + rows.shape(2), rows.shape(3)}, s);
  };
  const auto put = [&](const mx::array& all, const mx::array& rows) { return put_at(at, all, rows); };
  if (layout.family == codec::Family::full)
    return composed::pack_full(layout, put(composed::unpack_full(layout, bytes, s), mx::astype(y, mlx_dtype(layout.dtype), s)), s);
  const CodeBlocks fresh = composed::encode(layout, side.codecs, side.map, y, s);
  CodeBlocks blocks = composed::unpack_blocks(layout, bytes, s);
  for (size_t p = 0; p < blocks.codes.size(); ++p) blocks.codes[p] = put(blocks.codes[p], fresh.codes[p]);
  if (layout.scalar_rows > 0) blocks.scalars = put_at(layout.by_channel() ? at / layout.group : at, blocks.scalars, fresh.scalars);
  return composed::pack_blocks(layout, blocks, s);
}

// The slab with rows [begin, begin + count) of y at slots [at, ...); `offset` is where this side's blocks start in a head.
mx::array written(const codec::Layout& layout, const Side& side, const mx::array& slab, size_t offset, const mx::array& y,
                  const KvWrite& write, mx::StreamOrDevice s) {
  const auto i = [](auto n) { return static_cast<int>(n); };
  const int64_t first = write.at / layout.block_tokens;
  const size_t from = offset + first * layout.block_bytes, to = offset + layout.bytes(write.at + write.count);
  const mx::Shape start{0, 0, i(from)}, stop{slab.shape(0), slab.shape(1), i(to)};
  const mx::array rows = mx::slice(y, {0, 0, i(write.begin), 0}, {y.shape(0), y.shape(1), i(write.begin + write.count), y.shape(3)}, s);
  const mx::array blocks = with_tokens(layout, side, mx::slice(slab, start, stop, s), rows, i(write.at - first * layout.block_tokens), s);
  return mx::slice_update(slab, blocks, start, stop, s);
}

}  // namespace

void kv_append_composed(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v, const std::optional<mx::array>& centre,
                        mx::StreamOrDevice s) {
  for (const KvWrite& write : writes) {
    if (write.count == 0) continue;
    KvSlab& slab = *write.slab;
    const KvFormat& format = *slab.format;
    const KvBasis& basis = *format.basis;
    const RowShape keys = RowShape::of(k, format.heads, format.keys.dim, "kv_append", "k");
    const auto put = [&](const codec::Layout& layout, const Side& side, size_t offset, const mx::array& rows) {
      slab.data = written(layout, side, slab.data, offset, rows, write, s);
    };
    if (write.writes(codec::Role::keys))
      put(format.keys, {basis.key_codecs, basis.key_map}, 0, stored_basis(k, keys, format.sanitise, basis.key_rotation, centre, s));
    if (write.writes(codec::Role::values))
      put(format.values, {basis.value_codecs, basis.value_map}, format.values_offset(slab.capacity),
          stored_basis(v, RowShape::of(v, format.heads, format.values.dim, "kv_append", "v"), format.sanitise, basis.value_rotation,
                       std::nullopt, s));
  }
}

}  // namespace tersor::ops
