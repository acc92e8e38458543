#include "cache/full_vectors.h"

#include <algorithm>
#include <stdexcept>

#include "cache/layer_state.h"

namespace tersor::cache {

void read_vectors(const LayerCache& layer, codec::Role role, int head, std::span<const int64_t> positions, std::span<float> vectors) {
  const LayerCache::State& state = layer.state();
  const ops::KvFormat& format = *state.body_format;
  const codec::Layout& layout = role == codec::Role::keys ? format.keys : format.values;
  const size_t dim = static_cast<size_t>(layout.dim);
  if (layout.family != codec::Family::full || vectors.size() != positions.size() * dim)
    throw std::invalid_argument("[read_vectors] needs a full cache and room for all vectors");
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto slab = std::find_if(state.body.begin(), state.body.end(),
                                   [&](const ops::KvSlab& s) { return positions[i] >= s.first && positions[i] < s.first + s.count; });
    if (slab == state.body.end()) throw std::invalid_argument("[read_vectors] a position is not in the cache");
    const uint8_t* blocks = slab->data.data<uint8_t>() + static_cast<size_t>(head) * format.head_bytes(slab->capacity) +
                            (role == codec::Role::keys ? 0 : format.values_offset(slab->capacity));
    layout.get_full(blocks, positions[i] - slab->first, vectors.subspan(i * dim, dim));
  }
}

}  // namespace tersor::cache
