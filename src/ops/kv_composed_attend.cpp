// Attention over a cache in composed MLX operations: chunk by chunk with a running softmax, so that keys and values of the whole
// context never exist in full precision.
#include <mlx/ops.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ops/kv.h"
#include "ops/kv_composed_codes.h"
#include "ops/kv_rows.h"
#include "ops/kv_visibility.h"

namespace tersor::ops {
namespace {

constexpr int64_t kChunkTokens = 8 * codec::kTileTokens;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int to_int(int64_t n) { return static_cast<int>(n); }

// Everything of a call but the slabs. Rows are [B, KV heads, group, L], group = query heads of a KV head.
struct Call {
  const AttendOptions& options;
  RowShape shape;
  int batch, kv_heads, group, rows;
  int64_t position;
  mx::array queries;              // [B, KV heads, group * L, key dim], scaled, in the stored basis
  std::optional<mx::array> mask;  // [B|1, KV heads|1, group|1, L|1, tokens|1]
  mx::StreamOrDevice s;
};

// What the chunks so far add up to: weights relative to the running maximum.
struct Running {
  mx::array maximum, sum;  // [B, KV heads, group, L, 1]
  mx::array output;        // [B, KV heads, group, L, value dim]
};

mx::array load_queries(const mx::array& q, const RowShape& shape, const KvFormat& format, float scale, mx::StreamOrDevice s) {
  const int batch = to_int(shape.batch), heads = to_int(shape.heads), tokens = to_int(shape.tokens), dim = to_int(shape.dim);
  mx::array x = q;
  if (shape.tokens_major) x = mx::swapaxes(mx::reshape(x, {batch, tokens, heads, dim}, s), 1, 2, s);
  x = mx::multiply(mx::astype(x, mx::float32, s), mx::array(scale), s);
  if (format.basis->key_rotation) x = mx::matmul(x, composed::rotation_matrix(*format.basis->key_rotation), s);
  x = mx::reshape(x, {batch, format.heads, heads / format.heads * tokens, dim}, s);
  return format.basis->key_map ? mx::matmul(x, composed::map_matrix(*format.basis->key_map), s) : x;
}

mx::array by_group(const mx::array& mask, int kv_heads, int group, mx::StreamOrDevice s) {
  const bool per_head = mask.shape(1) != 1 || kv_heads * group == 1;
  return mx::reshape(mask, {mask.shape(0), per_head ? kv_heads : 1, per_head ? group : 1, mask.shape(2), mask.shape(3)}, s);
}

// [L, tokens] bool, or nothing when no row sees the chunk.
std::optional<mx::array> chunk_visibility(const Call& call, const KvRead& read, int64_t begin, int64_t end, mx::StreamOrDevice s) {
  std::vector<int32_t> lows, highs;
  bool any = false;
  for (int64_t row = 0; row < call.rows; ++row) {
    const VisibleRange range = visible_range(read, call.options, call.position + row);
    lows.push_back(static_cast<int32_t>(range.lo)), highs.push_back(static_cast<int32_t>(range.hi));
    any = any || (range.lo < range.hi && range.lo < end && range.hi > begin);
  }
  if (!any) return std::nullopt;
  const mx::array tokens = mx::arange(to_int(begin), to_int(end), mx::int32, s);
  const mx::array lo(lows.data(), {call.rows, 1}, mx::int32), hi(highs.data(), {call.rows, 1}, mx::int32);
  return mx::logical_and(mx::greater_equal(tokens, lo, s), mx::less(tokens, hi, s), s);
}

// Scores [B, KV heads, group, L, tokens]; what a row does not see is minus infinity, whatever its key holds.
mx::array scores_of(const Call& call, const mx::array& keys, const mx::array& visible, int64_t first_position, mx::StreamOrDevice s) {
  const int tokens = keys.shape(2);
  const mx::array hidden(kMinusInfinity);
  mx::array scores = mx::matmul(call.queries, mx::swapaxes(keys, 2, 3, s), s);
  scores = mx::reshape(scores, {call.batch, call.kv_heads, call.group, call.rows, tokens}, s);
  if (const float cap = call.options.soft_cap; cap > 0)
    scores = mx::multiply(mx::tanh(mx::divide(scores, mx::array(cap), s), s), mx::array(cap), s);
  if (call.mask) {
    mx::array mask = *call.mask;
    if (mask.shape(4) != 1) {
      mx::Shape start(5, 0), stop = mask.shape();
      start[4] = to_int(first_position), stop[4] = to_int(first_position + tokens);
      mask = mx::slice(mask, start, stop, s);
    }
    if (mask.dtype() == mx::bool_) {
      scores = mx::where(mask, scores, hidden, s);
    } else {
      mask = mx::astype(mask, mx::float32, s);
      scores = mx::where(mx::equal(mask, hidden, s), hidden, mx::add(scores, mask, s), s);
    }
  }
  return mx::where(visible, scores, hidden, s);
}

// weights [.., rows, tokens] times values [.., tokens, dim]. Infinities and NaN among values reach only rows of weight above zero.
mx::array weighted(const mx::array& weights, const mx::array& values, bool finite, mx::StreamOrDevice s) {
  if (finite) return mx::matmul(weights, values, s);
  const mx::array seen = mx::astype(mx::not_equal(weights, mx::array(0.0f), s), mx::float32, s), zero(0.0f);
  const auto reaches = [&](const mx::array& odd) { return mx::greater(mx::matmul(seen, mx::astype(odd, mx::float32, s), s), zero, s); };
  const auto where_reached = [&](const mx::array& odd, float value) { return mx::where(reaches(odd), mx::array(value), zero, s); };
  const mx::array sum = mx::matmul(weights, mx::where(mx::isfinite(values, s), values, zero, s), s);
  const mx::array up = where_reached(mx::isposinf(values, s), -kMinusInfinity),
                  down = where_reached(mx::isneginf(values, s), kMinusInfinity);
  const mx::array nan = where_reached(mx::isnan(values, s), std::numeric_limits<float>::quiet_NaN());
  return mx::add(mx::add(sum, up, s), mx::add(down, nan, s), s);
}

Running start(const Call& call, int value_dim, mx::StreamOrDevice s) {
  const mx::Shape one{call.batch, call.kv_heads, call.group, call.rows, 1},
      row{call.batch, call.kv_heads, call.group, call.rows, value_dim};
  return {mx::full(one, kMinusInfinity, mx::float32, s), mx::zeros(one, mx::float32, s), mx::zeros(row, mx::float32, s)};
}

// A maximum to subtract: minus infinity (nothing seen yet) becomes 0, so that no difference of infinities arises.
mx::array subtractable(const mx::array& maximum, mx::StreamOrDevice s) {
  return mx::where(mx::equal(maximum, mx::array(kMinusInfinity), s), mx::array(0.0f), maximum, s);
}

void add_chunk(const Call& call, Running& running, const mx::array& scores, const mx::array& values, bool finite, mx::StreamOrDevice s) {
  const mx::array maximum = mx::maximum(running.maximum, mx::max(scores, 4, true, s), s), base = subtractable(maximum, s);
  const mx::array weights = mx::exp(mx::subtract(scores, base, s), s), shrink = mx::exp(mx::subtract(running.maximum, base, s), s);
  const mx::array flat = mx::reshape(weights, {call.batch, call.kv_heads, call.group * call.rows, scores.shape(4)}, s);
  const mx::array part = mx::reshape(weighted(flat, values, finite, s), running.output.shape(), s);
  running.sum = mx::add(mx::multiply(running.sum, shrink, s), mx::sum(weights, 4, true, s), s);
  running.output = mx::add(mx::multiply(running.output, shrink, s), part, s);
  running.maximum = maximum;
}

void add_slab(const Call& call, const KvRead& read, Running& running, mx::StreamOrDevice s) {
  const KvSlab& slab = *read.slab;
  const KvFormat& format = *slab.format;
  // Numbers stored as they came in are finite when they were sanitised; a rotation may exceed a 16-bit range again.
  const bool finite = format.values.family != codec::Family::full || (format.sanitise && !format.basis->value_rotation);
  for (int64_t begin = 0; begin < slab.count; begin += kChunkTokens) {
    const int64_t end = std::min(begin + kChunkTokens, slab.count);
    const auto visible = chunk_visibility(call, read, begin, end, s);
    if (!visible) continue;
    // One chunk after the other: the next one is not decoded before this one has been added.
    KvSlab chunk = slab;
    chunk.data = mx::depends({slab.data}, {running.output})[0];
    const mx::array keys = composed::decode_tokens(chunk, codec::Role::keys, begin, end, s);
    const mx::array values = composed::decode_tokens(chunk, codec::Role::values, begin, end, s);
    add_chunk(call, running, scores_of(call, keys, *visible, slab.first + begin, s), values, finite, s);
  }
}

// A learned sink is one more column of the softmax, without a value.
void add_sinks(const Call& call, Running& running, mx::StreamOrDevice s) {
  const mx::array sinks = mx::reshape(mx::astype(*call.options.sinks, mx::float32, s), {1, call.kv_heads, call.group, 1, 1}, s);
  const mx::array maximum = mx::maximum(running.maximum, sinks, s), base = subtractable(maximum, s);
  const mx::array shrink = mx::exp(mx::subtract(running.maximum, base, s), s);
  running.sum = mx::add(mx::multiply(running.sum, shrink, s), mx::exp(mx::subtract(sinks, base, s), s), s);
  running.output = mx::multiply(running.output, shrink, s);
}

mx::array finish(const Call& call, const Running& running, const KvFormat& format, mx::Dtype dtype, mx::StreamOrDevice s) {
  const mx::array zero(0.0f), nothing = mx::equal(running.sum, zero, s);
  mx::array out = mx::divide(running.output, mx::where(nothing, mx::array(1.0f), running.sum, s), s);
  const int heads = call.kv_heads * call.group, dim = format.values.dim;
  if (format.basis->value_map) {
    const mx::Shape rows{call.batch, call.kv_heads, call.group * call.rows, composed::stored_width(format, codec::Role::values)};
    out = mx::matmul(mx::reshape(out, rows, s), composed::map_matrix(*format.basis->value_map), s);
  }
  out = mx::reshape(out, {call.batch, heads, call.rows, dim}, s);
  if (format.basis->value_rotation) out = mx::matmul(out, mx::transpose(composed::rotation_matrix(*format.basis->value_rotation), s), s);
  if (call.shape.tokens_major) out = mx::swapaxes(out, 1, 2, s);
  return mx::astype(mx::reshape(out, call.shape.with_dim(dim), s), dtype, s);
}

}  // namespace

KvAttended kv_attend_composed(const mx::array& q, std::span<const KvRead> reads, const AttendOptions& options, int64_t position,
                              mx::StreamOrDevice s) {
  const KvFormat& format = *reads[0].slab->format;
  const RowShape shape = RowShape::of(q, 0, format.keys.dim, "kv_attend", "q");
  const float scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(shape.dim));
  const int group = to_int(shape.heads) / format.heads;
  Call call{options,
            shape,
            to_int(shape.batch),
            format.heads,
            group,
            to_int(shape.tokens),
            position,
            load_queries(q, shape, format, scale, s),
            std::nullopt,
            s};
  if (options.mask) call.mask = by_group(checked_mask(*options.mask, shape, total_tokens(reads), s), format.heads, group, s);
  Running running = start(call, composed::stored_width(format, codec::Role::values), s);
  for (const KvRead& read : reads) add_slab(call, read, running, s);
  if (options.sinks) add_sinks(call, running, s);
  const mx::array out = finish(call, running, format, q.dtype(), s);
  return {out, mx::depends({mx::zeros({1}, mx::uint8, s)}, {out})[0]};
}

}  // namespace tersor::ops
