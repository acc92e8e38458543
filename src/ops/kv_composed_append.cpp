// Appending to a cache in composed MLX operations: the blocks that the new tokens fall into are unpacked, changed and put back.
#include <mlx/ops.h>

#include <cmath>
#include <vector>

#include "codec/scalar.h"
#include "ops/kv.h"
#include "ops/kv_composed_codes.h"
#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

using composed::CodeBlocks;

// [B, H, L, dim] float32, cleaned and rotated.
mx::array stored_basis(const mx::array& x, const RowShape& shape, bool sanitise, const codec::Rotation* rotation, mx::StreamOrDevice s) {
  const auto i = [](int64_t n) { return static_cast<int>(n); };
  mx::array y = x;
  if (shape.tokens_major) { y = mx::swapaxes(mx::reshape(y, {i(shape.batch), i(shape.tokens), i(shape.heads), i(shape.dim)}, s), 1, 2, s); }
  y = mx::astype(y, mx::float32, s);
  if (sanitise) {
    y = mx::where(mx::isnan(y, s), mx::array(0.0f), y, s);
    y = mx::minimum(mx::maximum(y, mx::array(-codec::kInputMax), s), mx::array(codec::kInputMax), s);
  }
  return rotation ? mx::matmul(y, composed::rotation_matrix(*rotation), s) : y;
}

// Nearest levels; a value on a threshold takes the lower one.
CodeBlocks encode_turboquant(const codec::Layout& layout, const mx::array& y, mx::StreamOrDevice s) {
  const codec::Codec& codec = *layout.codec;
  const mx::array zero(0.0f);
  const mx::array norm2 = mx::sum(mx::square(y, s), 3, true, s);
  // Below 1e-30 the stored scalar is 0; the quotient must stay finite, or 0 would become NaN.
  const mx::array inverse = mx::sqrt(mx::divide(mx::array(static_cast<float>(layout.dim)), mx::maximum(norm2, mx::array(1e-30f), s), s), s);
  const mx::array scaled = mx::multiply(y, inverse, s);
  mx::array codes = mx::zeros(y.shape(), mx::uint8, s);
  for (const float threshold : codec.thresholds())
    codes = mx::add(codes, mx::astype(mx::greater(scaled, mx::array(threshold), s), mx::uint8, s), s);
  const mx::array levels = mx::take(mx::array(layout.levels, {1 << layout.bits}, mx::float32), codes, s);
  const mx::array yc = mx::sum(mx::multiply(y, levels, s), 3, true, s);
  // Keys: |k|^2 / <k, c> makes inner products unbiased. Values: <v, c> / |c|^2 is the least-squares scalar.
  const mx::array scalar =
      layout.role == codec::Role::keys ? mx::divide(norm2, yc, s) : mx::divide(yc, mx::sum(mx::square(levels, s), 3, true, s), s);
  const mx::array some = mx::logical_and(mx::greater(norm2, zero, s), mx::greater(yc, zero, s), s);
  return {codes, composed::encode_norms(mx::where(some, scalar, zero, s), s)};
}

// The rule of codec/affine.h for all groups [B, H, L, groups] at once: scales and biases, not yet rounded.
std::pair<mx::array, mx::array> affine_from_ranges(const mx::array& lo, const mx::array& hi, int bits, mx::StreamOrDevice s) {
  const mx::array steps(static_cast<float>((1 << bits) - 1)), zero(0.0f);
  const mx::array low_edge = mx::greater(mx::abs(lo, s), mx::abs(hi, s), s);
  const mx::array edge = mx::where(low_edge, lo, hi, s);
  const mx::array width = mx::divide(mx::subtract(hi, lo, s), steps, s);
  const mx::array scale = mx::where(low_edge, width, mx::negative(width, s), s);
  const mx::array zero_code = mx::round(mx::divide(edge, scale, s), s);
  const mx::array spans_zero = mx::logical_and(mx::not_equal(zero_code, zero, s), mx::less_equal(mx::abs(zero_code, s), steps, s), s);
  const mx::array adjusts = mx::logical_and(mx::not_equal(scale, zero, s), spans_zero, s);
  return {mx::where(adjusts, mx::divide(edge, zero_code, s), scale, s), edge};
}

CodeBlocks encode_affine(const codec::Layout& layout, const mx::array& x, mx::StreamOrDevice s) {
  std::vector<mx::array> lows, highs;
  for (int g = 0; g < layout.groups; ++g) {
    const int begin = g * layout.group, end = std::min(begin + layout.group, layout.dim);
    const mx::array part = mx::slice(x, {0, 0, 0, begin}, {x.shape(0), x.shape(1), x.shape(2), end}, s);
    lows.push_back(mx::min(part, 3, true, s)), highs.push_back(mx::max(part, 3, true, s));
  }
  const auto [scales, biases] = affine_from_ranges(mx::concatenate(lows, 3, s), mx::concatenate(highs, 3, s), layout.bits, s);
  const mx::array stored = composed::encode_scales(mx::concatenate({scales, biases}, 3, s), s);
  // Codes are chosen against the scale and bias as stored.
  const std::vector<mx::array> rounded = mx::split(composed::decode_scales(stored, s), 2, 3, s);
  const mx::array groups = composed::group_of_dims(layout);
  const mx::array scale = mx::take(rounded[0], groups, 3, s), bias = mx::take(rounded[1], groups, 3, s);
  const mx::array code = mx::round(mx::divide(mx::subtract(x, bias, s), scale, s), s);
  const mx::array top(static_cast<float>((1 << layout.bits) - 1));
  const mx::array clamped = mx::minimum(mx::maximum(code, mx::array(0.0f), s), top, s);
  const mx::array codes = mx::where(mx::equal(scale, mx::array(0.0f), s), mx::array(0.0f), clamped, s);
  return {mx::astype(codes, mx::uint8, s), stored};
}

// Whole blocks with the rows of y put in from token `at` on.
mx::array with_tokens(const codec::Layout& layout, const mx::array& bytes, const mx::array& y, int at, mx::StreamOrDevice s) {
  const auto put = [&](const mx::array& all, const mx::array& rows) {
    return mx::slice_update(all, rows, mx::Shape{0, 0, at, 0}, mx::Shape{all.shape(0), all.shape(1), at + rows.shape(2), rows.shape(3)}, s);
  };
  if (layout.family == codec::Family::full)
    return composed::pack_full(layout, put(composed::unpack_full(layout, bytes, s), mx::astype(y, mlx_dtype(layout.dtype), s)), s);
  const CodeBlocks fresh = layout.family == codec::Family::affine ? encode_affine(layout, y, s) : encode_turboquant(layout, y, s);
  const CodeBlocks old = composed::unpack_codes(layout, bytes, s);
  return composed::pack_codes(layout, CodeBlocks{put(old.codes, fresh.codes), put(old.scalars, fresh.scalars)}, s);
}

// The slab with rows [begin, begin + count) of y at slots [at, ...); `offset` is where this side's blocks start in a head.
mx::array written(const codec::Layout& layout, const mx::array& slab, size_t offset, const mx::array& y, const KvWrite& write,
                  mx::StreamOrDevice s) {
  const auto i = [](auto n) { return static_cast<int>(n); };
  const int64_t first = write.at / layout.block_tokens;
  const size_t from = offset + first * layout.block_bytes, to = offset + layout.bytes(write.at + write.count);
  const mx::Shape start{0, 0, i(from)}, stop{slab.shape(0), slab.shape(1), i(to)};
  const mx::array rows = mx::slice(y, {0, 0, i(write.begin), 0}, {y.shape(0), y.shape(1), i(write.begin + write.count), y.shape(3)}, s);
  const mx::array blocks = with_tokens(layout, mx::slice(slab, start, stop, s), rows, i(write.at - first * layout.block_tokens), s);
  return mx::slice_update(slab, blocks, start, stop, s);
}

}  // namespace

void kv_append_composed(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v, mx::StreamOrDevice s) {
  for (const KvWrite& write : writes) {
    if (write.count == 0) continue;
    KvSlab& slab = *write.slab;
    const KvFormat& format = *slab.format;
    const RowShape keys = RowShape::of(k, format.heads, format.keys.dim, "kv_append", "k");
    const RowShape values = RowShape::of(v, format.heads, format.values.dim, "kv_append", "v");
    slab.data = written(format.keys, slab.data, 0, stored_basis(k, keys, format.sanitise, format.key_rotation, s), write, s);
    slab.data = written(format.values, slab.data, format.values_offset(slab.capacity),
                        stored_basis(v, values, format.sanitise, format.value_rotation, s), write, s);
  }
}

}  // namespace tersor::ops
