#include "ops/kv_composed_codes.h"

#include <mlx/ops.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "codec/scalar.h"
#include "ops/kv_rows.h"

namespace tersor::ops::composed {
namespace {

using codec::kLanes, codec::kTileTokens;

// A plane's bytes are [outer][rows][16][4] and the 8 / bits fields of a byte [upper][lower]. Of these six axes tokens take
// (rows, lower, A) and dims (outer, upper, B), where A and B are the 16 and the 4 for keys, the 4 and the 16 for values.
struct PlaneAxes {
  int outer, rows, upper, lower;
  PlaneAxes(const codec::Layout& layout, int bits) {
    const int fields = 8 / bits;
    if (layout.role == codec::Role::keys) {
      lower = std::min(fields, kTileTokens / kLanes), upper = fields / lower;
      outer = layout.padded_dim / 4 / upper, rows = kTileTokens / kLanes / lower;
    } else {
      lower = fields, upper = 1;
      outer = layout.padded_dim / kLanes, rows = kTileTokens / 4 / fields;
    }
  }
  int fields() const { return upper * lower; }
};

// Axes 0 to 2 are batch, head and block; then as above: 3 outer, 4 rows, 5 the sixteen, 6 the four, 7 upper, 8 lower.
std::vector<int> by_token(codec::Role role) {
  return role == codec::Role::keys ? std::vector<int>{0, 1, 2, 4, 8, 5, 3, 7, 6} : std::vector<int>{0, 1, 2, 4, 8, 6, 3, 7, 5};
}
std::vector<int> inverse_of(const std::vector<int>& axes) {
  std::vector<int> inverse(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) inverse[axes[i]] = static_cast<int>(i);
  return inverse;
}

mx::array u8(int value) { return mx::array(value, mx::uint8); }
mx::array u32(uint32_t value) { return mx::array(value, mx::uint32); }

mx::array shifts(int bits) {
  std::vector<uint8_t> list;
  for (int shift = 0; shift < 8; shift += bits) list.push_back(static_cast<uint8_t>(shift));
  return mx::array(list.data(), {static_cast<int>(list.size())}, mx::uint8);
}

// Indices: bytes [code][8 * bits], whose field f of byte t belongs to token t + 8 * bits * f. Fields [B, H, tokens, codes].
mx::array unpack_indices(const codec::Layout& part, int bits, const mx::array& bytes, mx::StreamOrDevice s) {
  const int b = bytes.shape(0), h = bytes.shape(1), n = bytes.shape(2);
  mx::array x = mx::reshape(bytes, {b, h, n, part.codes, 1, 8 * bits}, s);
  if (bits < 8) x = mx::bitwise_and(mx::right_shift(x, mx::reshape(shifts(bits), {8 / bits, 1}, s), s), u8((1 << bits) - 1), s);
  x = mx::reshape(x, {b, h, n, part.codes, kTileTokens}, s);
  return mx::reshape(mx::swapaxes(x, 3, 4, s), {b, h, n * kTileTokens, part.codes}, s);
}
mx::array pack_indices(const codec::Layout& part, int bits, const mx::array& fields, mx::StreamOrDevice s) {
  const int b = fields.shape(0), h = fields.shape(1), n = fields.shape(2) / kTileTokens;
  mx::array x = mx::swapaxes(mx::reshape(fields, {b, h, n, kTileTokens, part.codes}, s), 3, 4, s);
  x = mx::reshape(mx::contiguous(x, false, s), {b, h, n, part.codes, 8 / bits, 8 * bits}, s);
  if (bits < 8) x = mx::sum(mx::left_shift(x, mx::reshape(shifts(bits), {8 / bits, 1}, s), s), 4, false, s);
  return mx::reshape(mx::astype(x, mx::uint8, s), {b, h, n, part.codes * 8 * bits}, s);
}

// Bytes [B, H, blocks, plane bytes] to the plane's fields [B, H, tokens, padded dim].
mx::array unpack_plane(const codec::Layout& layout, int bits, const mx::array& bytes, mx::StreamOrDevice s) {
  if (layout.indexed()) return unpack_indices(layout, bits, bytes, s);
  const PlaneAxes a(layout, bits);
  const int b = bytes.shape(0), h = bytes.shape(1), n = bytes.shape(2);
  mx::array x = mx::reshape(bytes, {b, h, n, a.outer, a.rows, kLanes, 4, 1}, s);
  if (bits < 8) x = mx::bitwise_and(mx::right_shift(x, shifts(bits), s), u8((1 << bits) - 1), s);
  x = mx::reshape(x, {b, h, n, a.outer, a.rows, kLanes, 4, a.upper, a.lower}, s);
  return mx::reshape(mx::transpose(x, by_token(layout.role), s), {b, h, n * kTileTokens, layout.padded_dim}, s);
}

mx::array pack_plane(const codec::Layout& layout, int bits, const mx::array& fields, mx::StreamOrDevice s) {
  if (layout.indexed()) return pack_indices(layout, bits, fields, s);
  const PlaneAxes a(layout, bits);
  const int b = fields.shape(0), h = fields.shape(1), n = fields.shape(2) / kTileTokens;
  const bool keys = layout.role == codec::Role::keys;
  mx::array x = mx::reshape(fields, {b, h, n, a.rows, a.lower, keys ? kLanes : 4, a.outer, a.upper, keys ? 4 : kLanes}, s);
  x = mx::reshape(mx::transpose(x, inverse_of(by_token(layout.role)), s), {b, h, n, a.outer * a.rows * codec::kRowBytes, a.fields()}, s);
  if (bits == 8) return mx::squeeze(x, 4, s);
  return mx::astype(mx::sum(mx::left_shift(x, shifts(bits), s), 4, false, s), mx::uint8, s);  // fields do not overlap: sum is or
}

mx::array blocks_of(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s) {
  const int block = static_cast<int>(layout.block_bytes);
  return mx::reshape(bytes, {bytes.shape(0), bytes.shape(1), bytes.shape(2) / block, block}, s);
}

mx::array byte_range(const mx::array& blocks, size_t begin, size_t end, mx::StreamOrDevice s) {
  return mx::slice(blocks, {0, 0, 0, static_cast<int>(begin)}, {blocks.shape(0), blocks.shape(1), blocks.shape(2), static_cast<int>(end)},
                   s);
}

size_t plane_bytes(const codec::Layout& part, int bits) {
  return static_cast<size_t>(kTileTokens) * (part.indexed() ? part.codes : part.padded_dim) * bits / 8;
}

// Float bits (magnitudes) rounded to nearest even at `drop` bits, as 16-bit numbers of codec/scalar.h.
mx::array round_bits(const mx::array& magnitude, int drop, mx::StreamOrDevice s) {
  const mx::array bits =
      mx::subtract(mx::view(mx::minimum(magnitude, mx::array(codec::kScalarMax), s), mx::uint32, s), u32(codec::kScalarExponentShift), s);
  const mx::array odd = mx::bitwise_and(mx::right_shift(bits, u32(drop), s), u32(1), s);
  const mx::array rounded = mx::right_shift(mx::add(mx::add(bits, u32((1u << (drop - 1)) - 1), s), odd, s), u32(drop), s);
  return mx::where(mx::greater(magnitude, mx::array(0x1p-40f), s), rounded, u32(0), s);  // NaN: 0
}

}  // namespace

mx::array unpack_codes(const codec::Layout& part, const mx::array& blocks, mx::StreamOrDevice s) {
  std::optional<mx::array> codes;
  for (int i = 0; i < part.plane_count; ++i) {
    const codec::Plane& plane = part.planes[i];
    mx::array field = unpack_plane(part, plane.bits, byte_range(blocks, plane.offset, plane.offset + plane_bytes(part, plane.bits), s), s);
    if (part.bits > 8) field = mx::astype(field, mx::uint16, s);
    if (plane.shift) field = mx::left_shift(field, mx::array(plane.shift, field.dtype()), s);
    codes = codes ? mx::bitwise_or(*codes, field, s) : field;
  }
  return *codes;
}

namespace {

mx::array unpack_scalars(const codec::Layout& layout, const mx::array& blocks, mx::StreamOrDevice s) {
  const int b = blocks.shape(0), h = blocks.shape(1), n = blocks.shape(2);
  if (layout.scalar_rows == 0) return mx::zeros({b, h, n * kTileTokens, 0}, mx::uint16, s);
  const mx::array bytes = mx::contiguous(byte_range(blocks, layout.scalars_offset, layout.block_bytes, s), false, s);
  const mx::array stored = layout.scalar_bytes() == 1 ? bytes : mx::view(bytes, mx::uint16, s);
  if (layout.by_channel()) return mx::reshape(stored, {b, h, n * kTileTokens / layout.group, 2 * layout.padded_dim}, s);
  const mx::array rows = mx::reshape(stored, {b, h, n, layout.scalar_rows, kTileTokens}, s);
  return mx::reshape(mx::swapaxes(rows, 3, 4, s), {b, h, n * kTileTokens, layout.scalar_rows}, s);
}

}  // namespace

CodeBlocks unpack_blocks(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s) {
  const mx::array blocks = blocks_of(layout, bytes, s);
  std::vector<mx::array> codes;
  for (const codec::Layout& part : layout.parts()) codes.push_back(unpack_codes(part, blocks, s));
  return {codes, unpack_scalars(layout, blocks, s)};
}

mx::array pack_blocks(const codec::Layout& layout, const CodeBlocks& blocks, mx::StreamOrDevice s) {
  const mx::Shape& shape = blocks.codes[0].shape();
  const int b = shape[0], h = shape[1], n = shape[2] / kTileTokens;
  std::vector<mx::array> pieces;
  for (size_t p = 0; p < layout.parts().size(); ++p) {
    const codec::Layout& part = layout.parts()[p];
    for (int i = 0; i < part.plane_count; ++i) {
      const codec::Plane& plane = part.planes[i];
      const mx::array& codes = blocks.codes[p];
      const mx::array shifted = mx::right_shift(codes, mx::array(plane.shift, codes.dtype()), s);
      const mx::array fields = mx::bitwise_and(shifted, mx::array((1 << plane.bits) - 1, codes.dtype()), s);
      pieces.push_back(pack_plane(part, plane.bits, mx::astype(fields, mx::uint8, s), s));
    }
  }
  if (layout.by_channel()) {
    pieces.push_back(mx::view(mx::reshape(blocks.scalars, {b, h, n, static_cast<int>(layout.block_scalars())}, s), mx::uint8, s));
  } else if (layout.scalar_rows > 0) {
    const mx::array rows = mx::swapaxes(mx::reshape(blocks.scalars, {b, h, n, kTileTokens, layout.scalar_rows}, s), 3, 4, s);
    const mx::array stored = mx::reshape(mx::contiguous(rows, false, s), {b, h, n, layout.scalar_rows * kTileTokens}, s);
    pieces.push_back(layout.scalar_bytes() == 1 ? stored : mx::view(stored, mx::uint8, s));
  }
  return mx::reshape(mx::concatenate(pieces, 3, s), {b, h, n * static_cast<int>(layout.block_bytes)}, s);
}

mx::array unpack_full(const codec::Layout& layout, const mx::array& bytes, mx::StreamOrDevice s) {
  const mx::array numbers = mx::view(mx::contiguous(blocks_of(layout, bytes, s), false, s), mlx_dtype(layout.dtype), s);
  const int b = numbers.shape(0), h = numbers.shape(1), n = numbers.shape(2);
  const mx::Shape tokens = {b, h, n * layout.block_tokens, layout.padded_dim};
  if (layout.role == codec::Role::values) return mx::reshape(numbers, tokens, s);
  return mx::reshape(mx::swapaxes(mx::reshape(numbers, {b, h, n, layout.padded_dim, layout.block_tokens}, s), 3, 4, s), tokens, s);
}

mx::array pack_full(const codec::Layout& layout, const mx::array& numbers, mx::StreamOrDevice s) {
  const int b = numbers.shape(0), h = numbers.shape(1), n = numbers.shape(2) / layout.block_tokens;
  mx::array blocks = mx::reshape(numbers, {b, h, n, layout.block_tokens, layout.padded_dim}, s);
  if (layout.role == codec::Role::keys) blocks = mx::swapaxes(blocks, 3, 4, s);
  blocks = mx::reshape(mx::contiguous(blocks, false, s), {b, h, n * layout.block_tokens * layout.padded_dim}, s);
  return mx::view(blocks, mx::uint8, s);
}

mx::array decode_norms(const mx::array& bits, mx::StreamOrDevice s) {
  const mx::array wide = mx::left_shift(mx::astype(bits, mx::uint32, s), u32(13), s);
  const mx::array value = mx::view(mx::add(wide, u32(codec::kScalarExponentShift), s), mx::float32, s);
  return mx::where(mx::equal(bits, mx::array(0, mx::uint16), s), mx::array(0.0f), value, s);
}

mx::array encode_norms(const mx::array& values, mx::StreamOrDevice s) { return mx::astype(round_bits(values, 13, s), mx::uint16, s); }

mx::array decode_scales(const mx::array& bits, mx::StreamOrDevice s) {
  const mx::array wide = mx::astype(bits, mx::uint32, s), rest = mx::bitwise_and(wide, u32(0x7fff), s);
  const mx::array magnitude = mx::view(mx::add(mx::left_shift(rest, u32(14), s), u32(codec::kScalarExponentShift), s), mx::float32, s);
  const mx::array value = mx::where(mx::greater(wide, u32(0x7fff), s), mx::negative(magnitude, s), magnitude, s);
  return mx::where(mx::equal(rest, u32(0), s), mx::array(0.0f), value, s);
}

mx::array encode_scales(const mx::array& values, mx::StreamOrDevice s) {
  const mx::array rest = round_bits(mx::abs(values, s), 14, s);
  const mx::array negative = mx::logical_and(mx::less(values, mx::array(0.0f), s), mx::greater(rest, u32(0), s), s);
  return mx::astype(mx::where(negative, mx::bitwise_or(rest, u32(0x8000), s), rest, s), mx::uint16, s);
}

mx::array group_of_dims(const codec::Layout& layout) {
  std::vector<int32_t> groups;
  for (int d = 0; d < layout.dim; ++d) groups.push_back(d / layout.group);
  return mx::array(groups.data(), {layout.dim}, mx::int32);
}

mx::array decode_exponents(const mx::array& bytes, mx::StreamOrDevice s) {
  const mx::array bits = mx::maximum(mx::left_shift(mx::astype(bytes, mx::uint32, s), u32(23), s), u32(0x00400000), s);
  return mx::view(bits, mx::float32, s);
}

namespace {

mx::array cut(const mx::array& x, int last, mx::StreamOrDevice s) {
  return mx::slice(x, {0, 0, 0, 0}, {x.shape(0), x.shape(1), x.shape(2), last}, s);
}
mx::array scalars_of(const codec::Layout& part, const mx::array& scalars, mx::StreamOrDevice s) {
  mx::Shape start(4, 0), stop = scalars.shape();
  start[3] = part.first_scalar, stop[3] = part.first_scalar + part.scalar_rows;
  return mx::slice(scalars, start, stop, s);
}

// Indices [B, H, tokens, codes] to numbers [B, H, tokens, dim]; heads may have codebooks of their own.
mx::array look_up(const codec::Layout& part, const KvBasis::Codecs& codecs, const mx::array& indices, mx::StreamOrDevice s) {
  const int heads = static_cast<int>(codecs.size()), sub = part.codec->spec().sub, count = 1 << part.bits;
  std::vector<float> numbers;
  for (const auto& codec : codecs) numbers.insert(numbers.end(), codec->centroids().begin(), codec->centroids().end());
  const mx::array books(numbers.data(), {heads * count, sub}, mx::float32);
  mx::array at = mx::astype(indices, mx::int32, s);
  if (heads > 1) at = mx::add(at, mx::reshape(mx::multiply(mx::arange(heads, mx::int32, s), mx::array(count), s), {heads, 1, 1}, s), s);
  return mx::reshape(mx::take(books, at, 0, s), {at.shape(0), at.shape(1), at.shape(2), part.dim}, s);
}

// Scales and biases of channels, for groups of tokens.
mx::array decode_channels(const codec::Layout& part, const mx::array& codes, const mx::array& all_scalars, mx::StreamOrDevice s) {
  const int b = codes.shape(0), h = codes.shape(1), tokens = codes.shape(2), groups = tokens / part.group, width = part.padded_dim;
  const mx::array scalars = mx::reshape(decode_scales(all_scalars, s), {b, h, groups, 2, width}, s);
  const mx::array scales = mx::take(scalars, mx::array({0}, {1}, mx::int32), 3, s),
                  biases = mx::take(scalars, mx::array({1}, {1}, mx::int32), 3, s);
  const mx::array grouped = mx::reshape(mx::astype(codes, mx::float32, s), {b, h, groups, part.group, width}, s);
  const mx::array numbers = mx::add(mx::multiply(grouped, scales, s), biases, s);
  return cut(mx::reshape(numbers, {b, h, tokens, width}, s), part.dim, s);
}

// What one part decodes to: [B, H, tokens, part.dim].
mx::array decode_part(const codec::Layout& part, const KvBasis::Codecs& codecs, const mx::array& codes, const mx::array& all_scalars,
                      mx::StreamOrDevice s) {
  if (part.indexed()) return look_up(part, codecs, codes, s);
  if (part.by_channel()) return decode_channels(part, codes, all_scalars, s);
  const mx::array inner = cut(codes, part.dim, s), scalars = scalars_of(part, all_scalars, s);
  if (part.has_norms()) {
    const mx::array levels(part.levels, {1 << part.bits}, mx::float32);
    return mx::multiply(mx::take(levels, inner, s), decode_norms(scalars, s), s);
  }
  if (part.scalar_bytes() == 1) {
    const mx::array levels(part.levels, {1 << part.bits}, mx::float32);
    return mx::multiply(mx::take(levels, inner, s), mx::take(decode_exponents(scalars, s), group_of_dims(part), 3, s), s);
  }
  const mx::array parts = mx::reshape(decode_scales(scalars, s), {inner.shape(0), inner.shape(1), inner.shape(2), 2, part.groups}, s);
  const mx::array by_dim = mx::take(parts, group_of_dims(part), 4, s);
  const mx::array scales = mx::take(by_dim, 0, 3, s), biases = mx::take(by_dim, 1, 3, s);
  return mx::add(mx::multiply(mx::astype(inner, mx::float32, s), scales, s), biases, s);
}

}  // namespace

int stored_width(const KvFormat& format, codec::Role role) {
  const KvBasis& basis = *format.basis;
  if (role == codec::Role::keys) return basis.key_map ? basis.key_map->out : format.keys.dim;
  return basis.value_map ? basis.value_map->in : format.values.dim;
}

mx::array decode_tokens(const KvSlab& slab, codec::Role role, int64_t begin, int64_t end, mx::StreamOrDevice s) {
  const KvFormat& format = *slab.format;
  const bool keys = role == codec::Role::keys;
  const codec::Layout& layout = keys ? format.keys : format.values;
  const int width = stored_width(format, role), heads = slab.data.shape(1), batch = slab.data.shape(0);
  const size_t offset = keys ? 0 : format.values_offset(slab.capacity);
  const int64_t first = begin / layout.block_tokens;
  const auto from = static_cast<int>(offset + static_cast<size_t>(first) * layout.block_bytes),
             at = static_cast<int>(begin - first * layout.block_tokens);
  const mx::array bytes = mx::slice(slab.data, {0, 0, from}, {batch, heads, static_cast<int>(offset + layout.bytes(end))}, s);
  const mx::array numbers = decode_blocks(layout, keys ? format.basis->key_codecs : format.basis->value_codecs, bytes, width, s);
  return mx::slice(numbers, {0, 0, at, 0}, {batch, heads, at + static_cast<int>(end - begin), width}, s);
}

mx::array in_section(const mx::array& x, int begin, int width, mx::StreamOrDevice s) {
  if (begin == 0 && x.shape(3) == width) return x;
  return mx::pad(x, {{0, 0}, {0, 0}, {0, 0}, {begin, width - begin - x.shape(3)}}, mx::array(0.0f), "constant", s);
}

mx::array decode_blocks(const codec::Layout& layout, const KvBasis::Codecs& codecs, const mx::array& bytes, int width,
                        mx::StreamOrDevice s) {
  if (layout.family == codec::Family::full)
    return in_section(mx::astype(cut(unpack_full(layout, bytes, s), layout.dim, s), mx::float32, s), layout.stored_begin, width, s);
  const CodeBlocks blocks = unpack_blocks(layout, bytes, s);
  std::optional<mx::array> sum;
  for (size_t p = 0; p < layout.read_parts().size(); ++p) {
    const codec::Layout& part = layout.parts()[p];
    const mx::array numbers = in_section(decode_part(part, codecs, blocks.codes[p], blocks.scalars, s), part.stored_begin, width, s);
    sum = sum ? mx::add(*sum, numbers, s) : numbers;
  }
  return *sum;
}

mx::array rotation_matrix(const codec::Rotation& rotation) {
  using Key = std::pair<int, std::vector<float>>;  // the size and the signs say everything
  constexpr size_t kMost = 64;
  static std::mutex mutex;
  static std::map<Key, mx::array> matrices;
  const Key key(rotation.dim(), std::vector<float>(rotation.signs().begin(), rotation.signs().end()));
  const std::lock_guard lock(mutex);
  if (const auto found = matrices.find(key); found != matrices.end()) return found->second;
  const int dim = rotation.dim();
  std::vector<float> matrix;
  for (int i = 0; i < dim; ++i) {
    std::vector<double> unit(dim, 0.0);
    unit[i] = 1;
    rotation.apply(unit);
    matrix.insert(matrix.end(), unit.begin(), unit.end());
  }
  if (matrices.size() >= kMost) matrices.clear();
  return matrices.emplace(key, mx::array(matrix.data(), {dim, dim}, mx::float32)).first->second;
}

mx::array map_matrix(const codec::StoredMap& map) {
  return mx::array(map.of_head(0), {static_cast<int>(map.heads()), map.in, map.out}, mx::float32);
}

}  // namespace tersor::ops::composed
