// What a slab's codes stand for, in composed MLX operations.
#include <mlx/ops.h>

#include "ops/kv.h"
#include "ops/kv_composed_codes.h"

namespace tersor::ops {

mx::array kv_decode(const KvSlab& slab, codec::Role role, mx::StreamOrDevice s) {
  const KvFormat& format = *slab.format;
  const bool keys = role == codec::Role::keys;
  const codec::Layout& layout = keys ? format.keys : format.values;
  const auto& codecs = keys ? format.basis->key_codecs : format.basis->value_codecs;
  if (format.fragments() || !format.has(role)) throw std::invalid_argument("[kv_decode] the slab holds no such vectors in lanes");
  const auto i = [](size_t n) { return static_cast<int>(n); };
  const size_t offset = keys ? 0 : format.values_offset(slab.capacity);
  const mx::array bytes = mx::slice(slab.data, {0, 0, i(offset)}, {format.batch, format.heads, i(offset + layout.bytes(slab.count))}, s);
  const auto& map = keys ? format.basis->key_map : format.basis->value_map;
  const int width = map ? (keys ? map->out : map->in) : layout.dim;
  mx::array numbers = composed::decode_blocks(layout, codecs, bytes, width, s);
  numbers = mx::slice(numbers, {0, 0, 0, 0}, {format.batch, format.heads, i(static_cast<size_t>(slab.count)), width}, s);
  // Keys are decoded to what scores see: the transpose of the query's map takes them back.
  if (map) {
    const mx::array matrix = composed::map_matrix(*map, format.heads);
    numbers = mx::matmul(numbers, keys ? mx::swapaxes(matrix, -1, -2, s) : matrix, s);
  }
  if (const codec::Rotation* rotation = keys ? format.basis->key_rotation : format.basis->value_rotation)
    numbers = mx::matmul(numbers, mx::transpose(composed::rotation_matrix(*rotation), s), s);
  return numbers;
}

}  // namespace tersor::ops
