#include "cache/slabs.h"

#include <mlx/ops.h>

#include <algorithm>

namespace tersor::cache {
namespace {

// Blocks [first, last) of a slab's keys or values, as bytes [B, H, n].
mx::array block_bytes(const ops::KvSlab& slab, bool keys, int64_t first, int64_t last) {
  const codec::Layout& layout = keys ? slab.format->keys : slab.format->values;
  const size_t base = keys ? 0 : slab.format->values_offset(slab.capacity);
  const auto at = [&](int64_t block) { return static_cast<int>(base + static_cast<size_t>(block) * layout.block_bytes); };
  const auto& shape = slab.data.shape();
  return mx::slice(slab.data, {0, 0, at(first)}, {shape[0], shape[1], at(last)});
}

// Appends zero blocks until `parts` holds what a head's keys or values take in a slab of this capacity.
void pad_blocks(std::vector<mx::array>& parts, const codec::Layout& layout, const ops::KvSlab& like, int64_t used) {
  const int64_t spare = static_cast<int64_t>(layout.blocks(like.capacity)) - used;
  if (spare <= 0) return;
  const auto& shape = like.data.shape();
  parts.push_back(mx::zeros({shape[0], shape[1], static_cast<int>(spare * static_cast<int64_t>(layout.block_bytes))}, mx::uint8));
}

}  // namespace

ops::KvSlab moved(const ops::KvSlab& slab, int64_t first, int64_t capacity) {
  ops::KvSlab fresh = ops::KvSlab::make(slab.format, capacity, first);
  fresh.count = std::max<int64_t>(0, slab.first + slab.count - first);
  if (fresh.count == 0) return fresh;
  std::vector<mx::array> parts;
  for (const bool keys : {true, false}) {
    const codec::Layout& layout = keys ? slab.format->keys : slab.format->values;
    const int64_t begin = (first - slab.first) / layout.block_tokens, blocks = static_cast<int64_t>(layout.blocks(fresh.count));
    parts.push_back(block_bytes(slab, keys, begin, begin + blocks));
    pad_blocks(parts, layout, fresh, blocks);
  }
  fresh.data = mx::concatenate(std::move(parts), 2);
  return fresh;
}

ops::KvSlab joined(std::span<const ops::KvSlab> slabs) {
  int64_t tokens = 0;
  for (const ops::KvSlab& slab : slabs) tokens += slab.count;
  ops::KvSlab fresh = ops::KvSlab::make(slabs[0].format, tokens, slabs[0].first);
  fresh.count = tokens;
  if (tokens == 0) return fresh;
  std::vector<mx::array> parts;
  for (const bool keys : {true, false}) {
    const codec::Layout& layout = keys ? fresh.format->keys : fresh.format->values;
    int64_t used = 0;
    for (const ops::KvSlab& slab : slabs) {
      const int64_t blocks = static_cast<int64_t>(layout.blocks(slab.count));
      if (blocks) parts.push_back(block_bytes(slab, keys, 0, blocks));
      used += blocks;
    }
    pad_blocks(parts, layout, fresh, used);
  }
  fresh.data = mx::concatenate(std::move(parts), 2);
  return fresh;
}

}  // namespace tersor::cache
