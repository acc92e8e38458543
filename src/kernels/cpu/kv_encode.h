// Encodes new keys or values into the blocks of a cache, in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "codec/stored_map.h"
#include "kernels/cpu/kv_rows.h"

namespace tersor::kernels {

struct KvEncode {
  const codec::Layout* layout = nullptr;
  const codec::Rotation* rotation = nullptr;  // applied before encoding; null: none
  /// [heads] codecs, where heads have calibrations of their own; null: the layout's.
  const std::shared_ptr<const codec::Codec>* codecs = nullptr;
  const codec::StoredMap* map = nullptr;  // where the codec has one
  const float* centre = nullptr;          // [batch][heads][dim], subtracted first; null: nothing
  bool sanitise = true;                   // NaN becomes 0, magnitudes are clamped to half precision's range
  KvRows rows;                            // [batch][heads][tokens][dim]
  int64_t batch = 0, heads = 0, tokens = 0;
  uint8_t* blocks = nullptr;                 // of batch 0, head 0
  size_t batch_stride = 0, head_stride = 0;  // bytes
  int64_t first = 0;  // index of the first new token within the blocks; by channel this and `tokens` are multiples of the group
};

/// The work comes in independent tasks (no two touch the same block), to be run in any order, by any threads.
size_t kv_encode_tasks(const KvEncode& params);
void kv_encode_task(const KvEncode& params, size_t task);

}  // namespace tersor::kernels
