// What a slab's codes stand for, in composed MLX operations.
#include <mlx/ops.h>

#include "ops/kv.h"
#include "ops/kv_composed_codes.h"

namespace tersor::ops {

mx::array kv_decode(const KvSlab& slab, codec::Role role, int64_t begin, int64_t end, mx::StreamOrDevice s) {
  const KvFormat& format = *slab.format;
  const bool keys = role == codec::Role::keys;
  if (format.fragments() || !format.has(role)) throw std::invalid_argument("[kv_decode] the slab holds no such vectors in lanes");
  if (begin < 0 || end < begin || end > slab.count) throw std::invalid_argument("[kv_decode] the slab does not hold these tokens");
  mx::array numbers = composed::decode_tokens(slab, role, begin, end, s);
  // Keys are decoded to what scores see: the transpose of the query's map takes them back.
  if (const auto& map = keys ? format.basis->key_map : format.basis->value_map) {
    const mx::array matrix = composed::map_matrix(*map);
    numbers = mx::matmul(numbers, keys ? mx::swapaxes(matrix, -1, -2, s) : matrix, s);
  }
  if (const codec::Rotation* rotation = keys ? format.basis->key_rotation : format.basis->value_rotation)
    numbers = mx::matmul(numbers, mx::transpose(composed::rotation_matrix(*rotation), s), s);
  return numbers;
}

}  // namespace tersor::ops
