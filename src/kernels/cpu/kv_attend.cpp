#include "kernels/cpu/kv_attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_attend.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_rotate-inl.h"
#include "kernels/cpu/kv_tile-inl.h"
#include "kernels/cpu/tile_matmul-inl.h"

#ifndef TERSOR_KERNELS_CPU_KV_ATTEND_ONCE_
#define TERSOR_KERNELS_CPU_KV_ATTEND_ONCE_
namespace tersor::kernels {

// Rows (query tokens x heads of a group) that share one decoded tile at most: their queries, scores and outputs stay in L2.
inline constexpr int64_t kMaxRows = 96;

inline int64_t padded(int64_t dim) { return (dim + codec::kLanes - 1) / codec::kLanes * codec::kLanes; }

// One item's scratch, carved from its worker's memory. Partial results of split items use the last three.
struct Scratch {
  float *queries, *keys, *values, *scores, *scalars, *batch, *outputs, *maxima, *sums;
};

struct ScratchSizes {
  size_t rows, key_dim, value_dim, scalar_rows;
  ScratchSizes(const KvAttend& p, int64_t row_tile)
      : rows(row_tile * (p.heads / p.kv_heads)), key_dim(padded(p.key_dim)), value_dim(padded(p.value_dim)), scalar_rows(1) {
    for (size_t i = 0; i < p.segment_count; ++i)
      scalar_rows = std::max<size_t>(
          {scalar_rows, static_cast<size_t>(p.segments[i].keys->scalar_rows), static_cast<size_t>(p.segments[i].values->scalar_rows)});
  }
  size_t padded_rows() const { return padded(static_cast<int64_t>(rows)); }
  size_t partial() const { return rows * value_dim + 2 * padded_rows(); }
  size_t total() const {
    return rows * key_dim + codec::kTileTokens * (key_dim + value_dim + rows + 2 * scalar_rows) +
           std::max(key_dim, value_dim) * codec::kLanes + partial();
  }
};

// What one item computes.
struct Item {
  int64_t batch, kv_head, row_begin, row_count, split;
};
inline Item item_of(const KvAttend& p, const KvAttendPlan& plan, size_t index) {
  const int64_t split = static_cast<int64_t>(index) % plan.splits, unit = static_cast<int64_t>(index) / plan.splits;
  const int64_t tile = plan.row_tiles - 1 - unit / (p.batch * p.kv_heads);  // the longest rows first
  const int64_t head = unit % (p.batch * p.kv_heads);
  return {head / p.kv_heads, head % p.kv_heads, tile * plan.row_tile, std::min(plan.row_tile, p.rows - tile * plan.row_tile), split};
}

// The tokens of a segment, as indices within it, that a row at `position` may see.
struct Range {
  int64_t lo, hi;
};
inline Range visible(const KvAttend& p, const KvSegment& s, int64_t position) {
  int64_t lo = std::max({s.first, s.lo_abs, position + s.lo_rel});
  int64_t hi = std::min(s.first + s.count, std::max(s.hi_abs, position + s.hi_rel));
  if (p.causal) hi = std::min(hi, position + 1);
  if (p.sliding_window > 0) lo = std::max(lo, position - p.sliding_window + 1);
  return {lo - s.first, std::max(lo, hi) - s.first};
}

}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace attend {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
constexpr int kTile = codec::kTileTokens;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline Scratch carve(float* memory, const ScratchSizes& n) {
  Scratch s;
  const auto take = [&memory](size_t count) { return std::exchange(memory, memory + count); };
  s.queries = take(n.rows * n.key_dim);
  s.keys = take(kTile * n.key_dim);
  s.values = take(kTile * n.value_dim);
  s.scores = take(kTile * n.rows);
  s.scalars = take(2 * kTile * n.scalar_rows);
  s.batch = take(std::max(n.key_dim, n.value_dim) * codec::kLanes);
  s.outputs = take(n.rows * n.value_dim);
  s.maxima = take(n.padded_rows());
  s.sums = take(n.padded_rows());
  return s;
}

template <bool kInverse>
void RotateRows(float* rows, size_t ld, size_t count, const codec::Rotation& rotation, float* batch) {
  const size_t dim = rotation.dim();
  for (size_t first = 0; first < count; first += codec::kLanes) {
    const size_t n = std::min<size_t>(codec::kLanes, count - first);
    RowsToBatch(rows + first * ld, ld, n, dim, batch);
    if constexpr (kInverse)
      UnrotateBatch(batch, rotation);
    else
      RotateBatch(batch, rotation);
    BatchToRows(batch, n, dim, rows + first * ld, ld);
  }
}

// Row r of an item is query token r / group of head r % group.
inline void LoadQueries(const KvAttend& p, const Item& item, const Scratch& s, size_t ld) {
  const int64_t group = p.heads / p.kv_heads;
  const F d;
  for (int64_t r = 0; r < item.row_count * group; ++r) {
    float* row = s.queries + r * ld;
    ToFloat(p.queries.type, p.queries.row(item.batch, item.kv_head * group + r % group, item.row_begin + r / group), row, p.key_dim);
    std::fill(row + p.key_dim, row + ld, 0.0f);
    for (size_t i = 0; i < ld; i += hn::Lanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, p.scale)), d, row + i);
  }
  if (p.key_rotation) RotateRows<false>(s.queries, ld, item.row_count * group, *p.key_rotation, s.batch);
}

inline void ScaleRow(float* row, float factor, size_t n) {
  const F d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
}

inline void MultiplyRow(float* row, const float* factors) {
  const F d;
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, factors + i)), d, row + i);
}

inline void SoftCap(float* row, float cap) {
  const F d;
  const auto c = hn::Set(d, cap), inverse = hn::Set(d, 1 / cap);
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(c, hn::Tanh(d, hn::Mul(hn::LoadU(d, row + i), inverse))), d, row + i);
}

// What the mask adds to a score.
inline float MaskValue(const KvAttend& p, int64_t at) {
  switch (p.mask_kind) {
    case MaskKind::none: return 0;
    case MaskKind::boolean: return static_cast<const bool*>(p.mask)[at] ? 0 : kMinusInfinity;
    case MaskKind::f16: return half_to_float(static_cast<const uint16_t*>(p.mask)[at]);
    case MaskKind::bf16: return bfloat_to_float(static_cast<const uint16_t*>(p.mask)[at]);
    case MaskKind::f32: return static_cast<const float*>(p.mask)[at];
  }
  return 0;
}

// Adds the mask to scores [lo, hi) of one row; `token` is the position of score 0. Minus infinity hides a score, even NaN.
inline void ApplyMask(const KvAttend& p, float* row, int64_t batch, int64_t head, int64_t query, int64_t token, int64_t lo, int64_t hi) {
  const int64_t base = batch * p.mask_strides[0] + head * p.mask_strides[1] + query * p.mask_strides[2];
  for (int64_t i = lo; i < hi; ++i) {
    const float value = MaskValue(p, base + (token + i) * p.mask_strides[3]);
    row[i] = value == kMinusInfinity ? value : row[i] + value;
  }
}

// One row's online softmax over 64 scores, of which [lo, hi) count: scores become probabilities relative to the running maximum.
inline void SoftmaxRow(float* row, int64_t lo, int64_t hi, float& maximum, float& sum, float* output, size_t value_dim) {
  const F d;
  std::fill(row, row + lo, kMinusInfinity);
  std::fill(row + hi, row + kTile, kMinusInfinity);
  auto top = hn::LoadU(d, row);
  for (int i = static_cast<int>(hn::Lanes(d)); i < kTile; i += static_cast<int>(hn::Lanes(d))) top = hn::Max(top, hn::LoadU(d, row + i));
  const float tile_maximum = hn::GetLane(hn::MaxOfLanes(d, top));
  if (tile_maximum == kMinusInfinity) {  // nothing visible: no change, and no exp(-inf + inf)
    std::fill(row, row + kTile, 0.0f);
    return;
  }
  if (!(tile_maximum <= maximum)) {
    const float shrink = maximum == kMinusInfinity ? 0.0f : std::exp(maximum - tile_maximum);
    maximum = tile_maximum;
    sum *= shrink;
    ScaleRow(output, shrink, value_dim);
  }
  auto total = hn::Zero(d);
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d))) {
    const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, maximum)));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, row + i);
  }
  sum += hn::GetLane(hn::SumOfLanes(d, total));
}

// Values with infinities or NaN: a token of weight zero must not turn the output into NaN.
inline void AccumulateCarefully(const float* weights, const float* values, float* output, size_t value_dim, int tokens) {
  for (int t = 0; t < tokens; ++t)
    if (weights[t] != 0)
      for (size_t i = 0; i < value_dim; ++i) output[i] += weights[t] * values[t * value_dim + i];
}

// Scores of one tile for all rows to weights; returns nothing when no row sees the tile.
inline void Softmax(const KvAttend& p, const Item& item, const KvSegment& segment, int64_t tile_begin, const Scratch& s,
                    const float* key_norms, const float* value_norms, size_t value_dim) {
  const int64_t group = p.heads / p.kv_heads;
  for (int64_t r = 0; r < item.row_count * group; ++r) {
    float* const row = s.scores + r * kTile;
    const int64_t query = item.row_begin + r / group, head = item.kv_head * group + r % group;
    const Range range = visible(p, segment, p.position + query);
    const int64_t lo = std::clamp<int64_t>(range.lo - tile_begin, 0, kTile), hi = std::clamp<int64_t>(range.hi - tile_begin, lo, kTile);
    if (key_norms) MultiplyRow(row, key_norms);
    if (p.soft_cap > 0) SoftCap(row, p.soft_cap);
    if (p.mask_kind != MaskKind::none) ApplyMask(p, row, item.batch, head, query, segment.first + tile_begin, lo, hi);
    SoftmaxRow(row, lo, hi, s.maxima[r], s.sums[r], s.outputs + r * value_dim, value_dim);
    if (value_norms) MultiplyRow(row, value_norms);
  }
}

inline void Tile(const KvAttend& p, const Item& item, const KvSegment& segment, int64_t tile, const Scratch& s, const ScratchSizes& n) {
  const int64_t begin = tile * kTile;
  const int tokens = static_cast<int>(std::min<int64_t>(kTile, segment.count - begin));
  const size_t rows = item.row_count * (p.heads / p.kv_heads);
  const uint8_t* keys = segment.blocks + item.batch * segment.batch_stride + item.kv_head * segment.head_stride;
  const uint8_t* values = keys + segment.values_offset + begin / segment.values->block_tokens * segment.values->block_bytes;
  keys += begin / segment.keys->block_tokens * segment.keys->block_bytes;

  const TileFacts key_facts = DecodeTile(*segment.keys, keys, tokens, s.scalars, s.keys);
  TileMatMul<false>(s.queries, n.key_dim, s.keys, kTile, s.scores, kTile, rows, padded(tokens), p.key_dim);
  const TileFacts value_facts = DecodeTile(*segment.values, values, tokens, s.scalars + kTile * n.scalar_rows, s.values);
  Softmax(p, item, segment, begin, s, key_facts.norms, value_facts.norms, n.value_dim);
  if (value_facts.finite) {
    TileMatMul<true>(s.scores, kTile, s.values, n.value_dim, s.outputs, n.value_dim, rows, n.value_dim, tokens);
  } else {
    for (size_t r = 0; r < rows; ++r) AccumulateCarefully(s.scores + r * kTile, s.values, s.outputs + r * n.value_dim, n.value_dim, tokens);
  }
}

// Divides by the sums (learned sinks join them here), undoes the rotation, writes the rows.
inline void Finish(const KvAttend& p, const Item& item, const Scratch& s, const ScratchSizes& n) {
  const int64_t group = p.heads / p.kv_heads, rows = item.row_count * group;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = s.sums[r], factor = 1;
    if (p.sinks) {
      const float sink = p.sinks[item.kv_head * group + r % group], top = std::max(sink, s.maxima[r]);
      factor = s.maxima[r] == kMinusInfinity ? 0.0f : std::exp(s.maxima[r] - top);
      sum = sum * factor + (sink == kMinusInfinity ? 0.0f : std::exp(sink - top));
    }
    ScaleRow(s.outputs + r * n.value_dim, sum == 0 ? 0.0f : factor / sum, n.value_dim);  // a row that sees nothing gives zeros
  }
  if (p.value_rotation) RotateRows<true>(s.outputs, n.value_dim, rows, *p.value_rotation, s.batch);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = item.batch * p.out_batch_stride + (item.kv_head * group + r % group) * p.out_head_stride +
                       (item.row_begin + r / group) * p.out_token_stride;
    FromFloat(p.queries.type, s.outputs + r * n.value_dim, static_cast<char*>(p.out) + at * static_cast<int64_t>(size_of(p.queries.type)),
              p.value_dim);
  }
}

}  // namespace attend

void KvAttendItem(const KvAttend& p, const KvAttendPlan& plan, size_t index, float* worker_scratch, float* partials) {
  using namespace attend;
  const ScratchSizes n(p, plan.row_tile);
  Scratch s = carve(worker_scratch, n);
  if (plan.splits > 1) {
    s.outputs = partials + index * n.partial();
    s.maxima = s.outputs + n.rows * n.value_dim;
    s.sums = s.maxima + n.padded_rows();
  }
  const Item item = item_of(p, plan, index);
  LoadQueries(p, item, s, n.key_dim);
  std::fill(s.outputs, s.outputs + n.rows * n.value_dim, 0.0f);
  std::fill(s.maxima, s.maxima + n.padded_rows(), kMinusInfinity);
  std::fill(s.sums, s.sums + n.padded_rows(), 0.0f);

  // Tiles of all segments in one row, of which this split takes a contiguous part.
  int64_t total = 0, seen = 0;
  for (size_t i = 0; i < p.segment_count; ++i) total += (p.segments[i].count + kTile - 1) / kTile;
  const int64_t from = total * item.split / plan.splits, to = total * (item.split + 1) / plan.splits;
  for (size_t i = 0; i < p.segment_count; ++i) {
    const KvSegment& segment = p.segments[i];
    const int64_t tiles = (segment.count + kTile - 1) / kTile;
    const int64_t lo = visible(p, segment, p.position + item.row_begin).lo,
                  hi = visible(p, segment, p.position + item.row_begin + item.row_count - 1).hi;
    const int64_t first = std::max(std::max<int64_t>(from - seen, 0), lo / kTile),
                  last = std::min(std::min(to - seen, tiles), (hi + kTile - 1) / kTile);
    for (int64_t tile = first; tile < last; ++tile) Tile(p, item, segment, tile, s, n);
    seen += tiles;
  }
  if (plan.splits == 1) Finish(p, item, s, n);
}

void KvAttendMerge(const KvAttend& p, const KvAttendPlan& plan, size_t merge, float* worker_scratch, const float* partials) {
  using namespace attend;
  const ScratchSizes n(p, plan.row_tile);
  const Scratch s = carve(worker_scratch, n);
  const size_t first = merge * plan.splits;
  const Item item = item_of(p, plan, first);
  const size_t rows = item.row_count * (p.heads / p.kv_heads);
  const F d;
  for (size_t r = 0; r < rows; ++r) {
    const auto part = [&](int64_t split) { return partials + (first + split) * n.partial(); };
    float top = kMinusInfinity;
    for (int64_t k = 0; k < plan.splits; ++k) top = std::max(top, part(k)[n.rows * n.value_dim + r]);
    float* const output = s.outputs + r * n.value_dim;
    std::fill(output, output + n.value_dim, 0.0f);
    s.maxima[r] = top, s.sums[r] = 0;
    for (int64_t k = 0; k < plan.splits; ++k) {
      const float maximum = part(k)[n.rows * n.value_dim + r];
      const float sum = part(k)[n.rows * n.value_dim + n.padded_rows() + r];
      if (maximum == kMinusInfinity && sum == 0) continue;
      const float weight = std::exp(maximum - top);
      s.sums[r] += weight * sum;
      for (size_t i = 0; i < n.value_dim; i += hn::Lanes(d))
        hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, part(k) + r * n.value_dim + i), hn::LoadU(d, output + i)), d, output + i);
    }
  }
  Finish(p, item, s, n);
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(KvAttendItem);
HWY_EXPORT(KvAttendMerge);

KvAttendPlan kv_attend_plan(const KvAttend& p, size_t threads) {
  KvAttendPlan plan;
  const int64_t group = p.heads / p.kv_heads;
  plan.row_tile = std::clamp<int64_t>(kMaxRows / group, 1, std::max<int64_t>(1, p.rows));
  plan.row_tiles = (p.rows + plan.row_tile - 1) / plan.row_tile;
  const int64_t units = p.batch * p.kv_heads * plan.row_tiles;
  int64_t tiles = 0;
  for (size_t i = 0; i < p.segment_count; ++i) tiles += (p.segments[i].count + codec::kTileTokens - 1) / codec::kTileTokens;
  // Enough items that the threads finish together, none of them shorter than two tiles.
  constexpr int64_t kItemsPerThread = 6, kTilesPerItem = 2;
  const int64_t wanted = (kItemsPerThread * static_cast<int64_t>(threads) + units - 1) / std::max<int64_t>(units, 1);
  plan.splits = threads > 1 && units < kItemsPerThread * static_cast<int64_t>(threads)
                    ? std::max<int64_t>(1, std::min(wanted, tiles / kTilesPerItem))
                    : 1;
  const ScratchSizes sizes(p, plan.row_tile);
  plan.items = static_cast<size_t>(units * plan.splits);
  plan.merges = plan.splits > 1 ? static_cast<size_t>(units) : 0;
  plan.worker_floats = (sizes.total() + 15) / 16 * 16;
  plan.partial_floats = plan.splits > 1 ? plan.items * sizes.partial() : 0;
  return plan;
}

void kv_attend_item(const KvAttend& p, const KvAttendPlan& plan, size_t item, float* worker_scratch, float* partials) {
  HWY_DYNAMIC_DISPATCH(KvAttendItem)(p, plan, item, worker_scratch, partials);
}

void kv_attend_merge(const KvAttend& p, const KvAttendPlan& plan, size_t merge, float* worker_scratch, const float* partials) {
  HWY_DYNAMIC_DISPATCH(KvAttendMerge)(p, plan, merge, worker_scratch, partials);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
