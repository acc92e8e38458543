// Attention of query rows over segments of a cache, each read in the form it is stored in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "codec/stored_map.h"
#include "kernels/cpu/kv_rows.h"

namespace tersor::kernels {

/// A run of tokens that lies in one buffer. A query row at position p sees its token t when lo(p) <= t < hi(p), where
/// lo(p) = max(lo_abs, p + lo_rel) and hi(p) = max(hi_abs, p + hi_rel), besides what causality, window and mask say.
struct KvSegment {
  static constexpr int64_t kUnset = INT64_MIN / 4, kAll = INT64_MAX / 4;

  const codec::Layout* keys = nullptr;
  const codec::Layout* values = nullptr;
  const uint8_t* blocks = nullptr;           // keys of batch 0, head 0
  size_t batch_stride = 0, head_stride = 0;  // bytes
  size_t values_offset = 0;                  // from a head's keys to its values, bytes
  int64_t first = 0;                         // position of the buffer's first token
  int64_t count = 0;                         // tokens in it
  int64_t lo_abs = kUnset, lo_rel = kUnset, hi_abs = kAll, hi_rel = kUnset;
};

enum class MaskKind { none, boolean, f16, bf16, f32 };

struct KvAttend {
  int64_t batch = 0, heads = 0, kv_heads = 0, rows = 0;  // rows: query tokens
  int key_dim = 0, value_dim = 0;
  KvRows queries;       // [batch][heads][rows][key_dim]
  void* out = nullptr;  // [batch][heads][rows][value_dim], type of the queries, strides below in elements
  int64_t out_batch_stride = 0, out_head_stride = 0, out_token_stride = 0;
  const codec::Rotation* key_rotation = nullptr;    // applied to queries; null: none
  const codec::Rotation* value_rotation = nullptr;  // undone on outputs
  const codec::StoredMap* key_map = nullptr;        // instead of a rotation
  const codec::StoredMap* value_map = nullptr;
  /// [kv_heads] codecs of compressed segments, where heads have codebooks of their own; null: each layout's.
  const std::shared_ptr<const codec::Codec>* key_codecs = nullptr;
  const std::shared_ptr<const codec::Codec>* value_codecs = nullptr;
  float scale = 1, soft_cap = 0;
  bool causal = true;
  int64_t sliding_window = 0;
  int64_t position = 0;          // of query row 0
  const float* sinks = nullptr;  // [heads] learned sink logits, or null
  MaskKind mask_kind = MaskKind::none;
  const void* mask = nullptr;              // [batch][heads][rows][tokens by position]
  int64_t mask_strides[4] = {0, 0, 0, 0};  // elements; 0 broadcasts
  bool exact = false;  // float arithmetic on codes, instead of queries and weights quantised to 16 bits for integer dot products
  const KvSegment* segments = nullptr;
  size_t segment_count = 0;
};

/// How the work is cut. Items are independent; with splits > 1 their partial results are merged afterwards, one merge a unit.
struct KvAttendPlan {
  int64_t row_tile = 0, row_tiles = 0;  // query tokens that share one decoded tile
  int64_t splits = 1;
  size_t items = 0, merges = 0;
  size_t worker_floats = 0;   // scratch of each worker (64-byte aligned)
  size_t partial_floats = 0;  // shared by all
};
KvAttendPlan kv_attend_plan(const KvAttend& params, size_t threads);
void kv_attend_item(const KvAttend& params, const KvAttendPlan& plan, size_t item, float* worker_scratch, float* partials);
void kv_attend_merge(const KvAttend& params, const KvAttendPlan& plan, size_t merge, float* worker_scratch, const float* partials);

}  // namespace tersor::kernels
