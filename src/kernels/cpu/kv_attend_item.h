// How attention is cut into items, and the memory each item works in.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/kv_attend.h"
#include "kernels/cpu/kv_attend_parts.h"

namespace tersor::kernels {

inline int64_t padded(int64_t dim) { return (dim + codec::kLanes - 1) / codec::kLanes * codec::kLanes; }

/// What one item computes: row_count query tokens of the heads that share one KV head, over one part of the tokens.
struct KvItem {
  int64_t batch, kv_head, row_begin, row_count, split;
};
inline KvItem item_of(const KvAttend& p, const KvAttendPlan& plan, size_t index) {
  const int64_t split = static_cast<int64_t>(index) % plan.splits, unit = static_cast<int64_t>(index) / plan.splits;
  const int64_t tile = plan.row_tiles - 1 - unit / (p.batch * p.kv_heads);  // the longest rows first
  const int64_t head = unit % (p.batch * p.kv_heads);
  return {head / p.kv_heads, head % p.kv_heads, tile * plan.row_tile, std::min(plan.row_tile, p.rows - tile * plan.row_tile), split};
}

/// One past the last token of a segment, as an index within it, that a row at `position` may see; rises with the position, never beyond
/// the segment, and may be negative.
inline int64_t visible_end(const KvAttend& p, const KvSegment& s, int64_t position) {
  const int64_t hi = std::min(s.first + s.count, std::max(s.hi_abs, position + s.hi_rel));
  return (p.causal ? std::min(hi, position + 1) : hi) - s.first;
}

/// The tokens of a segment, as indices within it, that a row at `position` may see. None: lo = hi, which may then lie beyond the segment.
struct KvRange {
  int64_t lo, hi;
};
inline KvRange visible(const KvAttend& p, const KvSegment& s, int64_t position) {
  int64_t lo = std::max({s.first, s.lo_abs, position + s.lo_rel});
  if (p.sliding_window > 0) lo = std::max(lo, position - p.sliding_window + 1);
  lo -= s.first;
  return {lo, std::max(lo, visible_end(p, s, position))};
}

/// The tiles of a segment that any of the query rows [row_begin, row_end) may see. Tile i holds tokens from origin + 64 i on; the
/// origin lies on a boundary of blocks, so that a short window is one tile wherever it begins.
struct KvTiles {
  int64_t origin, count;
};
inline KvTiles tiles_of(const KvAttend& p, const KvSegment& s, int64_t row_begin, int64_t row_end) {
  const int64_t lo = visible(p, s, p.position + row_begin).lo, hi = visible_end(p, s, p.position + row_end - 1);
  const int64_t block = std::max(s.keys->block_tokens, s.values->block_tokens), origin = lo / block * block;
  return {origin, lo < hi ? (hi - origin + codec::kTileTokens - 1) / codec::kTileTokens : 0};
}

/// One item's memory, carved from its worker's. Rows are query tokens x heads of the group. Split items leave their results
/// (outputs, maxima, sums) in the shared memory instead.
struct KvScratch {
  float *queries, *keys, *values, *scores, *part_scores, *scalars, *batch, *lane_sums;
  int32_t *words, *word_sums;  // queries as integers, by parts: [rows][stored / 2] and [rows][stored / 16] in all
  float* steps;                // [parts][rows]
  TableRows tables;            // of codebook indices: keys, up to kTableRows rows
  IntegerBook book;            // values
  float *outputs, *maxima, *sums;
};

struct KvScratchSizes {
  size_t rows, key_dim, value_dim;  // of stored vectors, padded
  size_t scalar_rows = 1, parts = 1;
  size_t table_row = 0, book = 0;  // bytes
  KvScratchSizes(const KvAttend& p, int64_t row_tile)
      : rows(static_cast<size_t>(row_tile * (p.heads / p.kv_heads))),
        key_dim(static_cast<size_t>(p.key_map ? p.key_map->out : padded(p.key_dim))),
        value_dim(static_cast<size_t>(p.value_map ? p.value_map->in : padded(p.value_dim))) {
    for (size_t i = 0; i < p.segment_count; ++i)
      for (const codec::Layout* layout : {p.segments[i].keys, p.segments[i].values}) {
        for (const codec::Layout& part : layout->parts()) scalar_rows = std::max(scalar_rows, decoded_scalar_rows(part));
        parts = std::max(parts, layout->parts().size());
        if (!fits_tables(*layout)) continue;
        (layout->role == codec::Role::keys ? table_row : book) =
            layout->role == codec::Role::keys ? table_row_bytes(*layout) : book_bytes(*layout);
      }
  }
  size_t padded_rows() const { return static_cast<size_t>(padded(static_cast<int64_t>(rows))); }
  size_t partial() const { return rows * value_dim + 2 * padded_rows(); }

  KvScratch carve(float* memory) const {
    KvScratch s{};
    float* at[kParts];
    for (size_t i = 0; i < kParts; ++i) at[i] = std::exchange(memory, memory + part(i));
    s.queries = at[0], s.keys = at[1], s.values = at[2], s.scores = at[3], s.part_scores = at[4], s.scalars = at[5], s.batch = at[6];
    s.lane_sums = at[7];
    s.words = reinterpret_cast<int32_t*>(at[8]), s.word_sums = reinterpret_cast<int32_t*>(at[9]), s.steps = at[10];
    s.tables = {reinterpret_cast<uint8_t*>(at[11]), at[12], at[12] + kTableRows};
    s.book = {reinterpret_cast<uint8_t*>(at[13]), at[14]};
    set_results(at[15], s);
    return s;
  }
  /// The integers of one part of the keys. Two parts of one section have them twice.
  IntegerRows integers(const KvScratch& s, const codec::Layout& keys, size_t part) const {
    size_t begin = 0;
    for (size_t i = 0; i < part; ++i) begin += static_cast<size_t>(keys.read_parts()[i].padded_dim);
    return {s.words + rows * begin / 2, s.word_sums + rows * begin / codec::kLanes, s.steps + part * padded_rows()};
  }
  void set_results(float* memory, KvScratch& s) const {
    s.outputs = memory;
    s.maxima = s.outputs + rows * value_dim;
    s.sums = s.maxima + padded_rows();
  }
  size_t total() const {
    size_t sum = 0;
    for (size_t i = 0; i < kParts; ++i) sum += part(i);
    return sum;
  }

 private:
  static constexpr size_t kParts = 16;
  size_t part(size_t i) const {
    const size_t floats[kParts] = {rows * key_dim,
                                   codec::kTileTokens * key_dim,
                                   codec::kTileTokens * value_dim,
                                   codec::kTileTokens * rows,
                                   codec::kTileTokens * rows,
                                   codec::kTileTokens * scalar_rows,
                                   std::max(key_dim, value_dim) * codec::kLanes,
                                   rows * codec::kLanes,
                                   parts * rows * key_dim / 2,
                                   parts * rows * key_dim / codec::kLanes,
                                   parts * padded_rows(),
                                   std::min(std::min(rows, kTableRows) * table_row, kMostTableBytes) / sizeof(float),
                                   2 * kTableRows,
                                   book / sizeof(float),
                                   2,
                                   partial()};
    return static_cast<size_t>(padded(static_cast<int64_t>(floats[i])));
  }
};

}  // namespace tersor::kernels
