#include "kernels/cpu/kv_attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/kmeans.h"
#include "kernels/cpu/kv_attend_item.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_attend.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_rotate-inl.h"
#include "kernels/cpu/kv_softmax-inl.h"
#include "kernels/cpu/kv_tables-inl.h"
#include "kernels/cpu/kv_tile-inl.h"
#include "kernels/cpu/tile_matmul-inl.h"

#ifndef TERSOR_KERNELS_CPU_KV_ATTEND_ONCE_
#define TERSOR_KERNELS_CPU_KV_ATTEND_ONCE_
namespace tersor::kernels {

// Rows (query tokens x heads of a group) that share one decoded tile at most: their queries, scores and outputs stay in L2.
inline constexpr int64_t kMaxRows = 96;

}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
namespace attend {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using softmax::kMinusInfinity;
using softmax::kTile;

// `full` blocks are multiplied on their way from memory for so few rows; more rows share a tile of floats.
constexpr size_t kDirectRows = 8;
// Integer dots do twice the work of float multiply-adds where bytes are multiplied, else as much: then a shared tile of floats wins.
#if HWY_TARGET == HWY_AVX3_DL
constexpr size_t kIntegerRows = SIZE_MAX;
#else
constexpr size_t kIntegerRows = 16;
#endif

inline bool takes_integers(const KvAttend& p, const codec::Layout& layout, size_t rows) {
  return !p.exact && rows <= kIntegerRows && has_integers(layout);
}

inline bool takes_tables(const KvAttend& p, const codec::Layout& layout, size_t rows) {
  return tables::kHasTables && !p.exact && fits_tables(layout, rows);
}

template <bool kInverse>
void RotateRows(float* rows, size_t ld, size_t count, const codec::Rotation& rotation, float* batch) {
  const size_t dim = rotation.dim();
  if (rotates_rows(rotation)) {
    for (size_t r = 0; r < count; ++r) RotateRow<kInverse>(rows + r * ld, rotation);
    return;
  }
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

// A row through a StoredMap: to[0, map.out) = sum of row[i] * matrix[i].
inline void MapRow(const float* row, const codec::StoredMap& map, int64_t head, float* to) {
  const F d;
  const float* matrix = map.of_head(head);
  const auto out = static_cast<size_t>(map.out), whole = out / hn::Lanes(d) * hn::Lanes(d);
  std::fill(to, to + out, 0.0f);
  for (int i = 0; i < map.in; ++i, matrix += out) {
    const auto factor = hn::Set(d, row[i]);
    for (size_t o = 0; o < whole; o += hn::Lanes(d))
      hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, matrix + o), hn::LoadU(d, to + o)), d, to + o);
    for (size_t o = whole; o < out; ++o) to[o] += row[i] * matrix[o];
  }
}

// Row r of an item is query token r / group of head r % group. Scores come out in units of log 2, unless a soft cap has to see them.
inline void LoadQueries(const KvAttend& p, const KvItem& item, const KvScratch& s, size_t ld) {
  const int64_t group = p.heads / p.kv_heads;
  const F d;
  const auto scale = hn::Set(d, p.soft_cap > 0 ? p.scale : p.scale * softmax::kLog2E);
  for (int64_t r = 0; r < item.row_count * group; ++r) {
    const size_t dims = static_cast<size_t>(padded(p.key_dim));
    float* row = p.key_map ? s.batch : s.queries + r * ld;
    ToFloat(p.queries.type, p.queries.row(item.batch, item.kv_head * group + r % group, item.row_begin + r / group), row, p.key_dim);
    std::fill(row + p.key_dim, row + dims, 0.0f);
    for (size_t i = 0; i < dims; i += hn::Lanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), scale), d, row + i);
    if (p.key_map) MapRow(row, *p.key_map, item.kv_head, s.queries + r * ld);
  }
  if (p.key_rotation) RotateRows<false>(s.queries, ld, item.row_count * group, *p.key_rotation, s.batch);
}

inline void MultiplyRow(float* row, const float* factors) {
  const F d;
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, factors + i)), d, row + i);
}

// Values with infinities or NaN: a token of weight zero must not turn the output into NaN.
inline void AccumulateCarefully(const float* weights, const float* values, float* output, size_t value_dim, int tokens) {
  for (int t = 0; t < tokens; ++t)
    if (weights[t] != 0)
      for (size_t i = 0; i < value_dim; ++i) output[i] += weights[t] * values[t * value_dim + i];
}

// The codec of a head, which may have a codebook of its own.
inline const codec::Codec& codec_of(const codec::Layout& layout, const std::shared_ptr<const codec::Codec>* codecs, int64_t head) {
  return codecs ? *codecs[head] : *layout.codec;
}
// The codebook of a part; null where it has none.
inline const float* centroids(const codec::Layout& layout, const std::shared_ptr<const codec::Codec>* codecs, int64_t head) {
  return layout.indexed() ? codec_of(layout, codecs, head).centroids().data() : nullptr;
}
inline const float* columns(const codec::Layout& layout, const std::shared_ptr<const codec::Codec>* codecs, int64_t head) {
  return codec_of(layout, codecs, head).index()->columns().data();
}

// One tile as an item meets it.
struct TileView {
  int64_t kv_head;
  const uint8_t *keys, *values;
  int tokens;  // that any row sees
  size_t rows;
};

inline void AddRows(const float* from, size_t count, float* to) {
  const F d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(hn::Add(hn::LoadU(d, from + i), hn::LoadU(d, to + i)), d, to + i);
}

// Scores of one tile decoded to floats: of `full` numbers, or of one part.
inline void ScoreTile(const KvAttend& p, const codec::Layout& layout, const TileView& tile, const KvScratch& s, const KvScratchSizes& n,
                      float* scores) {
  const TileFacts facts = DecodeTile(layout, tile.keys, tile.tokens, centroids(layout, p.key_codecs, tile.kv_head), s.scalars, s.keys);
  TileMatMul<false>(s.queries + layout.stored_begin, n.key_dim, s.keys, kTile, scores, kTile, tile.rows, padded(tile.tokens), layout.dim);
  if (facts.norms)
    for (size_t r = 0; r < tile.rows; ++r) MultiplyRow(scores + r * kTile, facts.norms);
}

inline void Scores(const KvAttend& p, const codec::Layout& layout, const TileView& tile, const KvScratch& s, const KvScratchSizes& n) {
  if (layout.family == codec::Family::full) {
    if (tile.rows > kDirectRows) return ScoreTile(p, layout, tile, s, n, s.scores);
    return ScoreFull(layout, tile.keys, tile.tokens, s.queries + layout.stored_begin, n.key_dim, tile.rows, s.scores);
  }
  if (takes_tables(p, layout, tile.rows)) return ScoreTables(layout, tile.keys, s.tables, tile.rows, s.scores);
  const bool integers = takes_integers(p, layout, tile.rows);
  for (size_t i = 0; i < layout.read_parts().size(); ++i) {
    const codec::Layout& part = layout.read_parts()[i];
    float* const scores = i == 0 ? s.scores : s.part_scores;
    if (integers && part.by_channel()) {
      ScoreChannels(part, tile.keys, tile.tokens, s.queries + part.stored_begin, n.key_dim, tile.rows, n.integers(s, layout, i), s.scalars,
                    scores);
    } else if (integers) {
      const auto score = part.has_norms() ? ScoreLevels : ScoreAffine;
      score(part, tile.keys, tile.tokens, n.integers(s, layout, i), tile.rows, s.scalars, scores);
    } else {
      ScoreTile(p, part, tile, s, n, scores);
    }
    if (i > 0) AddRows(scores, tile.rows * kTile, s.scores);
  }
}

// Weights times one part of the values decoded to floats, added to the outputs. The weights are changed where the part has norms, into
// `weights` if that is another place.
inline void WeighTile(const KvAttend& p, const codec::Layout& layout, const TileView& tile, const KvScratch& s, const KvScratchSizes& n,
                      float* weights) {
  const TileFacts facts =
      DecodeTile(layout, tile.values, tile.tokens, centroids(layout, p.value_codecs, tile.kv_head), s.scalars, s.values);
  if (weights != s.scores) std::copy_n(s.scores, tile.rows * kTile, weights);
  if (facts.norms)
    for (size_t r = 0; r < tile.rows; ++r) MultiplyRow(weights + r * kTile, facts.norms);
  float* const outputs = s.outputs + layout.stored_begin;
  const auto dims = static_cast<size_t>(layout.padded_dim);
  if (facts.finite) {
    TileMatMul<true>(weights, kTile, s.values, dims, outputs, n.value_dim, tile.rows, dims, tile.tokens);
  } else {
    for (size_t r = 0; r < tile.rows; ++r) AccumulateCarefully(weights + r * kTile, s.values, outputs + r * n.value_dim, dims, tile.tokens);
  }
}

// Weights times values, added to the outputs. The weights may be changed.
inline void Outputs(const KvAttend& p, const codec::Layout& layout, const TileView& tile, const KvScratch& s, const KvScratchSizes& n) {
  if (layout.family == codec::Family::full) {
    if (tile.rows > kDirectRows) return WeighTile(p, layout, tile, s, n, s.scores);
    return WeighFull(layout, tile.values, tile.tokens, s.scores, tile.rows, s.outputs + layout.stored_begin, n.value_dim);
  }
  if (takes_tables(p, layout, tile.rows)) return WeighTables(layout, tile.values, s.book, s.scores, tile.rows, s.outputs, n.value_dim);
  const bool integers = takes_integers(p, layout, tile.rows);
  for (const codec::Layout& part : layout.read_parts()) {
    if (!integers) {
      WeighTile(p, part, tile, s, n, layout.read_parts().size() > 1 ? s.part_scores : s.scores);
      continue;
    }
    const auto weigh = part.has_norms() ? WeighLevels : WeighAffine;
    weigh(part, tile.values, tile.tokens, s.scores, tile.rows, s.scalars, s.outputs + part.stored_begin, n.value_dim);
  }
}

// Scores of one tile for all rows to weights.
inline void Softmax(const KvAttend& p, const KvItem& item, const KvSegment& segment, int64_t begin, const KvScratch& s,
                    const KvScratchSizes& n) {
  const int64_t group = p.heads / p.kv_heads;
  for (int64_t r = 0; r < item.row_count * group; ++r) {
    float* const row = s.scores + r * kTile;
    const int64_t query = item.row_begin + r / group, head = item.kv_head * group + r % group;
    const KvRange range = visible(p, segment, p.position + query);
    const int64_t lo = std::clamp<int64_t>(range.lo - begin, 0, kTile), hi = std::clamp<int64_t>(range.hi - begin, lo, kTile);
    if (p.soft_cap > 0) softmax::SoftCap(row, p.soft_cap);
    if (p.mask_kind != MaskKind::none) softmax::ApplyMask(p, row, item.batch, head, query, segment.first + begin, lo, hi);
    softmax::SoftmaxRow(row, lo, hi, {s.maxima[r], s.lane_sums + r * codec::kLanes, s.outputs + r * n.value_dim, n.value_dim});
  }
}

// The tile of tokens from `begin` on.
inline void Tile(const KvAttend& p, const KvItem& item, const KvSegment& segment, int64_t begin, const KvScratch& s,
                 const KvScratchSizes& n) {
  const int64_t last_row = p.position + item.row_begin + item.row_count - 1;
  const int64_t seen = visible_end(p, segment, last_row) - begin;  // by the last row, which sees the most
  const uint8_t* head = segment.blocks + item.batch * segment.batch_stride + item.kv_head * segment.head_stride;
  const codec::Layout &keys = *segment.keys, &values = *segment.values;
  const TileView view{item.kv_head, head + begin / keys.block_tokens * keys.block_bytes,
                      head + segment.values_offset + begin / values.block_tokens * values.block_bytes,
                      static_cast<int>(std::min<int64_t>(kTile, seen)), static_cast<size_t>(item.row_count * (p.heads / p.kv_heads))};
  Scores(p, keys, view, s, n);
  Softmax(p, item, segment, begin, s, n);
  Outputs(p, values, view, s, n);
}

// Divides by the sums (learned sinks join them here), undoes the rotation, writes the rows.
inline void Finish(const KvAttend& p, const KvItem& item, const KvScratch& s, const KvScratchSizes& n) {
  const int64_t group = p.heads / p.kv_heads, rows = item.row_count * group;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = s.sums[r], factor = 1;
    if (p.sinks) {
      const float sink = p.sinks[item.kv_head * group + r % group] * softmax::kLog2E, top = std::max(sink, s.maxima[r]);
      factor = s.maxima[r] == kMinusInfinity ? 0.0f : std::exp2(s.maxima[r] - top);
      sum = sum * factor + (sink == kMinusInfinity ? 0.0f : std::exp2(sink - top));
    }
    softmax::ScaleRow(s.outputs + r * n.value_dim, sum == 0 ? 0.0f : factor / sum, n.value_dim);  // a row that sees nothing gives zeros
  }
  if (p.value_rotation) RotateRows<true>(s.outputs, n.value_dim, rows, *p.value_rotation, s.batch);
  const auto final_row = [&](int64_t r) {
    float* const row = s.outputs + r * n.value_dim;
    if (!p.value_map) return row;
    MapRow(row, *p.value_map, item.kv_head, s.batch);
    return s.batch;
  };
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = item.batch * p.out_batch_stride + (item.kv_head * group + r % group) * p.out_head_stride +
                       (item.row_begin + r / group) * p.out_token_stride;
    FromFloat(p.queries.type, final_row(r), static_cast<char*>(p.out) + at * static_cast<int64_t>(size_of(p.queries.type)), p.value_dim);
  }
}

// Queries in the forms that the segments need, and empty results.
inline void Begin(const KvAttend& p, const KvItem& item, const KvScratch& s, const KvScratchSizes& n) {
  const size_t rows = item.row_count * (p.heads / p.kv_heads);
  LoadQueries(p, item, s, n.key_dim);
  const auto compressed =
      std::find_if(p.segments, p.segments + p.segment_count, [&](const KvSegment& x) { return takes_integers(p, *x.keys, rows); });
  if (compressed != p.segments + p.segment_count) {  // all compressed segments have one layout
    const codec::Layout& keys = *compressed->keys;
    for (size_t i = 0; i < keys.read_parts().size(); ++i) {
      const codec::Layout& part = keys.read_parts()[i];
      if (part.by_channel()) continue;  // a group of tokens multiplies them with its own scales
      QuantiseRows(s.queries + part.stored_begin, n.key_dim, rows, part.padded_dim, numbers_of(part), n.integers(s, keys, i));
    }
  }
  for (const bool of_keys : {true, false}) {
    const auto indexed = std::find_if(p.segments, p.segments + p.segment_count,
                                      [&](const KvSegment& x) { return takes_tables(p, of_keys ? *x.keys : *x.values, rows); });
    if (indexed == p.segments + p.segment_count) continue;
    if (of_keys)
      MakeTables(*indexed->keys, columns(*indexed->keys, p.key_codecs, item.kv_head), s.queries, n.key_dim, rows, s.tables);
    else
      MakeBook(*indexed->values, columns(*indexed->values, p.value_codecs, item.kv_head), s.book);
  }
  std::fill(s.outputs, s.outputs + rows * n.value_dim, 0.0f);
  std::fill(s.lane_sums, s.lane_sums + rows * codec::kLanes, 0.0f);
  std::fill(s.maxima, s.maxima + rows, kMinusInfinity);
}

// All tiles that an item sees. The tiles of all segments make one row, of which the item's split is a contiguous part.
inline void Tiles(const KvAttend& p, const KvAttendPlan& plan, const KvItem& item, const KvScratch& s, const KvScratchSizes& n) {
  const auto tiles = [&](size_t i) { return tiles_of(p, p.segments[i], item.row_begin, item.row_begin + item.row_count); };
  int64_t total = 0, seen = 0;
  for (size_t i = 0; i < p.segment_count; ++i) total += tiles(i).count;
  const int64_t from = total * item.split / plan.splits, to = total * (item.split + 1) / plan.splits;
  for (size_t i = 0; i < p.segment_count; ++i) {
    const auto [origin, count] = tiles(i);
    for (int64_t tile = std::max<int64_t>(from - seen, 0); tile < std::min(to - seen, count); ++tile)
      Tile(p, item, p.segments[i], origin + tile * kTile, s, n);
    seen += count;
  }
}

}  // namespace attend

void KvAttendItem(const KvAttend& p, const KvAttendPlan& plan, size_t index, float* worker_scratch, float* partials) {
  using namespace attend;
  const KvScratchSizes n(p, plan.row_tile);
  KvScratch s = n.carve(worker_scratch);
  if (plan.splits > 1) n.set_results(partials + index * n.partial(), s);
  const KvItem item = item_of(p, plan, index);
  Begin(p, item, s, n);
  Tiles(p, plan, item, s, n);
  const F d;
  for (size_t r = 0; r < static_cast<size_t>(item.row_count * (p.heads / p.kv_heads)); ++r)
    s.sums[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, s.lane_sums + r * codec::kLanes)));
  if (plan.splits == 1) Finish(p, item, s, n);
}

void KvAttendMerge(const KvAttend& p, const KvAttendPlan& plan, size_t merge, float* worker_scratch, const float* partials) {
  using namespace attend;
  const KvScratchSizes n(p, plan.row_tile);
  const KvScratch s = n.carve(worker_scratch);
  const size_t first = merge * plan.splits;
  const KvItem item = item_of(p, plan, first);
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
      const float weight = std::exp2(maximum - top);
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
  for (size_t i = 0; i < p.segment_count; ++i) tiles += tiles_of(p, p.segments[i], 0, p.rows).count;
  // Enough items that the threads finish together, none so short that its queries cost more than a few percent of it.
  // Items that make tables first are worth half as many.
  const bool makes_tables =
      !p.exact && std::any_of(p.segments, p.segments + p.segment_count, [](const KvSegment& s) { return fits_tables(*s.keys); });
  const int64_t items_per_thread = makes_tables ? 3 : 6;
  constexpr int64_t kTilesPerItem = 4;
  const int64_t wanted = (items_per_thread * static_cast<int64_t>(threads) + units - 1) / std::max<int64_t>(units, 1);
  plan.splits = threads > 1 && units < items_per_thread * static_cast<int64_t>(threads)
                    ? std::max<int64_t>(1, std::min(wanted, tiles / kTilesPerItem))
                    : 1;
  const KvScratchSizes sizes(p, plan.row_tile);
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
