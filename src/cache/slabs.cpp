#include "cache/slabs.h"

#include <mlx/ops.h>

#include <algorithm>

namespace tersor::cache {
namespace {

// A run of blocks within each head of a slab: keys, values, or with fragments both, block by block.
struct Run {
  size_t base, block_bytes;
  int block_tokens;
  int64_t blocks(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
};

std::vector<Run> runs_of(const ops::KvFormat& format, int64_t capacity) {
  const codec::Layout &keys = format.keys, &values = format.values;
  if (format.fragments()) return {{0, keys.stride, keys.block_tokens}};
  return {{0, keys.block_bytes, keys.block_tokens}, {format.values_offset(capacity), values.block_bytes, values.block_tokens}};
}

// Blocks [first, last) of a run, as bytes [B, H, n].
mx::array block_bytes(const ops::KvSlab& slab, const Run& run, int64_t first, int64_t last) {
  const auto at = [&](int64_t block) { return static_cast<int>(run.base + static_cast<size_t>(block) * run.block_bytes); };
  const auto& shape = slab.data.shape();
  return mx::slice(slab.data, {0, 0, at(first)}, {shape[0], shape[1], at(last)});
}

// Appends zero blocks until `parts` holds what the run takes in a slab of this capacity.
void pad_blocks(std::vector<mx::array>& parts, const Run& run, const ops::KvSlab& like, int64_t used) {
  const int64_t spare = run.blocks(like.capacity) - used;
  if (spare <= 0) return;
  const auto& shape = like.data.shape();
  parts.push_back(mx::zeros({shape[0], shape[1], static_cast<int>(spare * static_cast<int64_t>(run.block_bytes))}, mx::uint8));
}

}  // namespace

ops::KvSlab moved(const ops::KvSlab& slab, int64_t first, int64_t capacity) {
  ops::KvSlab fresh = ops::KvSlab::make(slab.format, capacity, first);
  fresh.count = std::max<int64_t>(0, slab.first + slab.count - first);
  if (fresh.count == 0) return fresh;
  std::vector<mx::array> parts;
  for (const Run& run : runs_of(*slab.format, slab.capacity)) {
    const int64_t begin = (first - slab.first) / run.block_tokens, blocks = run.blocks(fresh.count);
    parts.push_back(block_bytes(slab, run, begin, begin + blocks));
    pad_blocks(parts, run, fresh, blocks);
  }
  fresh.data = mx::concatenate(std::move(parts), 2);
  return fresh;
}

mx::array own_memory(const mx::array& bytes) { return mx::bitwise_or(bytes, mx::array(0, mx::uint8)); }

ops::KvSlab joined(std::span<const ops::KvSlab> slabs) {
  int64_t tokens = 0;
  for (const ops::KvSlab& slab : slabs) tokens += slab.count;
  ops::KvSlab fresh = ops::KvSlab::make(slabs[0].format, tokens, slabs[0].first);
  fresh.count = tokens;
  if (tokens == 0) return fresh;
  std::vector<mx::array> parts;
  for (size_t i = 0; i < runs_of(*fresh.format, 0).size(); ++i) {
    int64_t used = 0;
    for (const ops::KvSlab& slab : slabs) {
      const Run run = runs_of(*slab.format, slab.capacity)[i];
      const int64_t blocks = run.blocks(slab.count);
      if (blocks) parts.push_back(block_bytes(slab, run, 0, blocks));
      used += blocks;
    }
    pad_blocks(parts, runs_of(*fresh.format, fresh.capacity)[i], fresh, used);
  }
  fresh.data = mx::concatenate(std::move(parts), 2);
  return fresh;
}

}  // namespace tersor::cache
