#include "ops/kv_composed_encode.h"

#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "codec/levels.h"
#include "codec/scalar.h"

namespace tersor::ops::composed {
namespace {

using codec::Codec, codec::Family, codec::ScalarRule;

mx::array number(float value) { return mx::array(value); }
mx::array last_sum(const mx::array& x, mx::StreamOrDevice s) { return mx::sum(x, 3, true, s); }

mx::array columns(const mx::array& x, int begin, int end, mx::StreamOrDevice s) {
  mx::Shape start(4, 0), stop = x.shape();
  start[3] = begin, stop[3] = end;
  return mx::slice(x, start, stop, s);
}

// How many of the rising borders lie below each number.
mx::array above(const mx::array& x, std::span<const float> borders, mx::StreamOrDevice s) {
  mx::array count = mx::zeros(x.shape(), mx::uint8, s);
  for (const float border : borders) count = mx::add(count, mx::astype(mx::greater(x, number(border), s), mx::uint8, s), s);
  return count;
}

mx::array levels_of(const codec::LevelTable& table, const mx::array& codes, mx::StreamOrDevice s) {
  return mx::take(mx::array(table.levels.data(), {static_cast<int>(table.levels.size())}, mx::float32), codes, s);
}

// What turns vectors into one part's section of the stored ones: [heads or 1, dim, part.dim]. For values it is the way back, transposed.
mx::array section_map(const codec::Layout& part, const codec::StoredMap& map, mx::StreamOrDevice s) {
  const mx::array all = map_matrix(map);
  const mx::array way = part.role == codec::Role::keys ? all : mx::swapaxes(all, 1, 2, s);
  return mx::slice(way, {0, 0, part.stored_begin}, {way.shape(0), way.shape(1), part.stored_begin + part.dim}, s);
}

// What makes numbers of about unit variance. Below 1e-30 the stored scalar is 0; the quotient must stay finite, or 0 would become NaN.
mx::array unit_variance(const mx::array& y, const mx::array& norm2, mx::StreamOrDevice s) {
  return mx::sqrt(mx::divide(number(static_cast<float>(y.shape(3))), mx::maximum(norm2, number(1e-30f), s), s), s);
}

// The scalar of y and the levels of its codes, as stored.
mx::array scalar_of(ScalarRule rule, const mx::array& y, const mx::array& levels, mx::StreamOrDevice s) {
  const mx::array zero(0.0f), norm2 = last_sum(mx::square(y, s), s), yc = last_sum(mx::multiply(y, levels, s), s);
  const mx::array scalar = rule == ScalarRule::unbiased        ? mx::divide(norm2, yc, s)
                           : rule == ScalarRule::least_squares ? mx::divide(yc, last_sum(mx::square(levels, s), s), s)
                                                               : mx::sqrt(mx::divide(norm2, number(static_cast<float>(y.shape(3))), s), s);
  const mx::array some = mx::logical_and(mx::greater(norm2, zero, s), mx::greater(yc, zero, s), s);
  return encode_norms(mx::where(some, scalar, zero, s), s);
}

struct Coded {
  mx::array codes, scalar;
};
Coded quantise(const codec::LevelTable& table, ScalarRule rule, const mx::array& y, mx::StreamOrDevice s) {
  const mx::array scaled = mx::multiply(y, unit_variance(y, last_sum(mx::square(y, s), s), s), s);
  const mx::array codes = above(scaled, table.thresholds, s);
  return {codes, scalar_of(rule, y, levels_of(table, codes, s), s)};
}

// Signs of a sketch, and |sketched| * factor.
Coded signs(const mx::array& sketch, const mx::array& sketched, double factor, mx::StreamOrDevice s) {
  const mx::array norm = mx::sqrt(last_sum(mx::square(sketched, s), s), s);
  return {mx::astype(mx::greater_equal(sketch, number(0.0f), s), mx::uint8, s),
          encode_norms(mx::multiply(norm, number(static_cast<float>(factor)), s), s)};
}

CodeBlocks of_parts(const std::vector<Coded>& parts, mx::StreamOrDevice s) {
  CodeBlocks blocks{{}, parts[0].scalar};
  std::vector<mx::array> scalars;
  for (const Coded& part : parts) blocks.codes.push_back(part.codes), scalars.push_back(part.scalar);
  if (parts.size() > 1) blocks.scalars = mx::concatenate(scalars, 3, s);
  return blocks;
}

CodeBlocks encode_split(const codec::Layout& layout, const codec::StoredMap& map, const mx::array& x, mx::StreamOrDevice s) {
  const ScalarRule rule = codec::resolved(layout.codec->spec().scalar, layout.role);
  std::vector<Coded> parts;
  for (const codec::Layout& part : layout.parts())
    parts.push_back(quantise(*part.table, rule, mx::matmul(x, section_map(part, map, s), s), s));
  return of_parts(parts, s);
}

// x is not rotated: prod has a map.
CodeBlocks encode_prod(const codec::Layout& layout, const codec::StoredMap& map, const mx::array& x, mx::StreamOrDevice s) {
  const Codec& c = *layout.codec;
  const mx::array sketch = section_map(layout.parts().back(), map, s);
  if (layout.parts().size() == 1) return of_parts({signs(mx::matmul(x, sketch, s), x, c.sketch_factor(0), s)}, s);
  const ScalarRule rule = c.spec().scalar == ScalarRule::automatic ? ScalarRule::norm : c.spec().scalar;
  const mx::array rotation = section_map(layout.parts()[0], map, s), y = mx::matmul(x, rotation, s);
  const Coded first = quantise(*layout.parts()[0].table, rule, y, s);
  const mx::array taken = mx::multiply(levels_of(*layout.parts()[0].table, first.codes, s), decode_norms(first.scalar, s), s);
  const mx::array rest = mx::matmul(mx::subtract(y, taken, s), mx::swapaxes(rotation, 1, 2, s), s);
  return of_parts({first, signs(mx::matmul(rest, sketch, s), rest, c.sketch_factor(1), s)}, s);
}

CodeBlocks encode_qjl(const codec::Layout& layout, const KvBasis::Codecs& codecs, const codec::StoredMap& map, const mx::array& x,
                      mx::StreamOrDevice s) {
  std::vector<float> apart;  // [heads][1][dim]: 1 at channels with a sketch of their own
  for (const auto& one : codecs) {
    std::vector<float> mask(static_cast<size_t>(layout.dim), 0.0f);
    for (const int channel : one->outliers()) mask[static_cast<size_t>(channel)] = 1;
    apart.insert(apart.end(), mask.begin(), mask.end());
  }
  const mx::array mask(apart.data(), {static_cast<int>(codecs.size()), 1, layout.dim}, mx::float32);
  std::vector<Coded> parts;
  for (size_t p = 0; p < layout.parts().size(); ++p) {
    const codec::Layout& part = layout.parts()[p];
    const mx::array chosen = mx::multiply(x, p == 0 ? mx::subtract(number(1.0f), mask, s) : mask, s);
    parts.push_back(signs(mx::matmul(x, section_map(part, map, s), s), chosen, layout.codec->sketch_factor(static_cast<int>(p)), s));
  }
  return of_parts(parts, s);
}

// Indices of the nearest sums of a level of each stage: all sums in rising order have borders.
std::pair<mx::array, mx::array> nearest_sums(const codec::LevelTable& first, const codec::LevelTable& second, const mx::array& y,
                                             mx::StreamOrDevice s) {
  std::vector<std::pair<float, std::pair<uint8_t, uint8_t>>> sums;
  for (size_t i = 0; i < first.levels.size(); ++i)
    for (size_t j = 0; j < second.levels.size(); ++j)
      sums.push_back({first.levels[i] + second.levels[j], {static_cast<uint8_t>(i), static_cast<uint8_t>(j)}});
  std::sort(sums.begin(), sums.end());
  std::vector<float> borders;
  std::vector<uint8_t> firsts, seconds;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (i > 0) borders.push_back((sums[i - 1].first + sums[i].first) / 2);
    firsts.push_back(sums[i].second.first), seconds.push_back(sums[i].second.second);
  }
  const mx::array place = above(y, borders, s);
  const int count = static_cast<int>(sums.size());
  return {mx::take(mx::array(firsts.data(), {count}, mx::uint8), place, s),
          mx::take(mx::array(seconds.data(), {count}, mx::uint8), place, s)};
}

CodeBlocks encode_rvq(const codec::Layout& layout, const mx::array& y, mx::StreamOrDevice s) {
  const codec::LevelTable &first = *layout.parts()[0].table, &second = *layout.parts()[1].table;
  const mx::array scaled = mx::multiply(y, unit_variance(y, last_sum(mx::square(y, s), s), s), s);
  std::optional<std::pair<mx::array, mx::array>> codes;
  if (layout.codec->spec().joint) {
    codes = nearest_sums(first, second, scaled, s);
  } else {
    const mx::array one = above(scaled, first.thresholds, s);
    codes = {one, above(mx::subtract(scaled, levels_of(first, one, s), s), second.thresholds, s)};
  }
  mx::array levels = levels_of(first, codes->first, s);
  if (layout.read_parts().size() > 1) levels = mx::add(levels, levels_of(second, codes->second, s), s);
  return {{codes->first, codes->second}, scalar_of(codec::resolved(layout.codec->spec().scalar, layout.role), y, levels, s)};
}

// Keys are encoded as H diag(1 / lambda) k, from the queries' H diag(lambda), whose columns have the length lambda.
CodeBlocks encode_indices(const codec::Layout& layout, const KvBasis::Codecs& codecs, const std::optional<codec::StoredMap>& map,
                          const mx::array& x, mx::StreamOrDevice s) {
  const int sub = layout.codec->spec().sub, count = 1 << layout.bits, heads = static_cast<int>(codecs.size());
  mx::array y = x;
  if (map) {
    const mx::array smoothing = section_map(layout, *map, s);
    y = mx::matmul(x, mx::divide(smoothing, mx::sum(mx::square(smoothing, s), 2, true, s), s), s);
  }
  std::vector<float> numbers;
  for (const auto& codec : codecs) numbers.insert(numbers.end(), codec->centroids().begin(), codec->centroids().end());
  const mx::array books(numbers.data(), {heads, count, sub}, mx::float32);
  // |y - c|^2 = |y|^2 - 2 (<y, c> - |c|^2 / 2)
  const mx::array half = mx::expand_dims(mx::multiply(mx::sum(mx::square(books, s), 2, false, s), number(0.5f), s), 1, s);
  const mx::array vectors = mx::reshape(y, {y.shape(0), y.shape(1), y.shape(2) * layout.codes, sub}, s);
  const mx::array likeness = mx::subtract(mx::matmul(vectors, mx::swapaxes(books, 1, 2, s), s), half, s);
  const mx::array codes = mx::reshape(mx::argmax(likeness, 3, false, s), {y.shape(0), y.shape(1), y.shape(2), layout.codes}, s);
  return {{mx::astype(codes, layout.bits > 8 ? mx::uint16 : mx::uint8, s)},
          mx::zeros({y.shape(0), y.shape(1), y.shape(2), 0}, mx::uint16, s)};
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

// Codes of numbers against scales and biases as stored, which broadcast.
mx::array affine_codes(const mx::array& x, const mx::array& scale, const mx::array& bias, int bits, mx::StreamOrDevice s) {
  const mx::array steps(static_cast<float>((1 << bits) - 1));
  const mx::array code = mx::round(mx::divide(mx::subtract(x, bias, s), scale, s), s);
  const mx::array clamped = mx::minimum(mx::maximum(code, number(0.0f), s), steps, s);
  return mx::astype(mx::where(mx::equal(scale, number(0.0f), s), number(0.0f), clamped, s), mx::uint8, s);
}

// Scales and biases from extremes, not yet rounded.
std::pair<mx::array, mx::array> affine_by_rule(const codec::Layout& layout, const mx::array& low, const mx::array& high,
                                               mx::StreamOrDevice s) {
  const codec::Spec& spec = layout.codec->spec();
  const auto rule = spec.rule.value_or(layout.by_channel() ? codec::GroupRule::minmax : codec::GroupRule::mlx);
  if (rule != codec::GroupRule::minmax) return affine_from_ranges(low, high, layout.bits, s);
  return {mx::divide(mx::subtract(high, low, s), mx::array(static_cast<float>((1 << layout.bits) - 1)), s), low};
}

// Each channel of a group of tokens.
CodeBlocks encode_channels(const codec::Layout& layout, const mx::array& x, mx::StreamOrDevice s) {
  const int b = x.shape(0), h = x.shape(1), groups = x.shape(2) / layout.group;
  const mx::array grouped = mx::reshape(x, {b, h, groups, layout.group, layout.dim}, s);
  const auto [scales, biases] = affine_by_rule(layout, mx::min(grouped, 3, true, s), mx::max(grouped, 3, true, s), s);
  const mx::array stored = encode_scales(mx::concatenate({scales, biases}, 3, s), s);  // [B, H, groups, 2, dim]
  const std::vector<mx::array> rounded = mx::split(decode_scales(stored, s), 2, 3, s);
  const mx::array codes = affine_codes(grouped, rounded[0], rounded[1], layout.bits, s);
  const mx::array padded =
      mx::pad(stored, {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, layout.padded_dim - layout.dim}}, mx::array(0, mx::uint16), "constant", s);
  return {{mx::reshape(codes, x.shape(), s)}, mx::reshape(padded, {b, h, groups, 2 * layout.padded_dim}, s)};
}

// The extremes of every group, [B, H, L, groups].
std::pair<mx::array, mx::array> group_ranges(const codec::Layout& layout, const mx::array& x, mx::StreamOrDevice s) {
  std::vector<mx::array> lows, highs;
  for (int g = 0; g < layout.groups; ++g) {
    const mx::array part = columns(x, g * layout.group, std::min((g + 1) * layout.group, layout.dim), s);
    lows.push_back(mx::min(part, 3, true, s)), highs.push_back(mx::max(part, 3, true, s));
  }
  return {mx::concatenate(lows, 3, s), mx::concatenate(highs, 3, s)};
}

CodeBlocks encode_affine(const codec::Layout& layout, const mx::array& x, mx::StreamOrDevice s) {
  if (layout.by_channel()) return encode_channels(layout, x, s);
  const auto [low, high] = group_ranges(layout, x, s);
  const auto [scales, biases] = affine_by_rule(layout, low, high, s);
  const mx::array stored = encode_scales(mx::concatenate({scales, biases}, 3, s), s);
  // Codes are chosen against the scale and bias as stored.
  const std::vector<mx::array> rounded = mx::split(decode_scales(stored, s), 2, 3, s);
  const mx::array groups = group_of_dims(layout);
  const mx::array scale = mx::take(rounded[0], groups, 3, s), bias = mx::take(rounded[1], groups, 3, s);
  return {{affine_codes(x, scale, bias, layout.bits, s)}, stored};
}

// floor(log2(x)) of positive normal numbers, as int32.
mx::array exponent_of(const mx::array& x, mx::StreamOrDevice s) {
  const mx::array bits = mx::view(x, mx::int32, s);
  return mx::subtract(mx::right_shift(bits, mx::array(23), s), mx::array(127), s);
}

// The scale's byte of every group, by codec/microscaling.h's rules.
mx::array scale_exponents(const codec::Layout& layout, const mx::array& largest, mx::StreamOrDevice s) {
  const bool wide = layout.family == Family::mxfp8;
  mx::array exponent(0);
  if (layout.codec->spec().rule == codec::GroupRule::ocp) {
    exponent = mx::subtract(exponent_of(largest, s), mx::array(wide ? 8 : 2), s);
  } else {  // the ceiling of log2(largest / top)
    const mx::array least = mx::divide(largest, number(wide ? 448.0f : 6.0f), s), floor = exponent_of(least, s);
    const mx::array mantissa = mx::bitwise_and(mx::view(least, mx::int32, s), mx::array(0x7fffff), s);
    exponent = mx::add(floor, mx::astype(mx::greater(mantissa, mx::array(0), s), mx::int32, s), s);
  }
  const mx::array byte = mx::minimum(mx::maximum(mx::add(exponent, mx::array(127), s), mx::array(0), s), mx::array(254), s);
  return mx::astype(mx::where(mx::greater(largest, number(0.0f), s), byte, mx::array(127), s), mx::uint8, s);
}

// Codes of positive numbers among rising values; a number midway goes to the even code, or with `down` to the smaller.
mx::array nearest_code(const mx::array& magnitude, std::span<const float> values, bool down, mx::StreamOrDevice s) {
  mx::array code = mx::zeros(magnitude.shape(), mx::uint8, s);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const mx::array border((values[i] + values[i + 1]) / 2);
    const bool up_at_tie = !down && i % 2 == 1;
    const mx::array over = up_at_tie ? mx::greater_equal(magnitude, border, s) : mx::greater(magnitude, border, s);
    code = mx::add(code, mx::astype(over, mx::uint8, s), s);
  }
  return code;
}

CodeBlocks encode_microscaled(const codec::Layout& layout, const mx::array& x, mx::StreamOrDevice s) {
  const bool wide = layout.family == Family::mxfp8, ocp = layout.codec->spec().rule == codec::GroupRule::ocp;
  const mx::array exponents = scale_exponents(layout, group_ranges(layout, mx::abs(x, s), s).second, s);
  const mx::array scale = mx::take(decode_exponents(exponents, s), group_of_dims(layout), 3, s);
  const mx::array y = mx::divide(x, scale, s);
  const size_t finite = wide ? 127 : 8;  // codes of magnitudes; e4m3's last is NaN
  const mx::array code = nearest_code(mx::abs(y, s), std::span(layout.levels, finite), !wide && !ocp, s);
  const mx::array negative = mx::less(mx::view(y, mx::int32, s), mx::array(0), s);
  const mx::array sign = wide || ocp ? negative : mx::logical_and(negative, mx::greater(code, mx::array(0, mx::uint8), s), s);
  const mx::array top = mx::where(sign, mx::array(wide ? 0x80 : 8, mx::uint8), mx::array(0, mx::uint8), s);
  return {{mx::bitwise_or(code, top, s)}, exponents};
}

}  // namespace

CodeBlocks encode(const codec::Layout& layout, const KvBasis::Codecs& codecs, const std::optional<codec::StoredMap>& map,
                  const mx::array& x, mx::StreamOrDevice s) {
  switch (layout.family) {
    case Family::affine: return encode_affine(layout, x, s);
    case Family::mxfp4:
    case Family::mxfp8: return encode_microscaled(layout, x, s);
    case Family::turboquant_split: return encode_split(layout, *map, x, s);
    case Family::turboquant_prod: return encode_prod(layout, *map, x, s);
    case Family::turboquant_rvq: return encode_rvq(layout, x, s);
    case Family::qjl: return encode_qjl(layout, codecs, *map, x, s);
    case Family::vecinfer: return encode_indices(layout, codecs, map, x, s);
    default: return of_parts({quantise(*layout.table, codec::resolved(layout.codec->spec().scalar, layout.role), x, s)}, s);
  }
}

}  // namespace tersor::ops::composed
