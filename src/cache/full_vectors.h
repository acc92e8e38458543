// Reading keys and values back from a cache that keeps them in full precision.
#pragma once

#include <span>

#include "tersor/cache.h"

namespace tersor::cache {

/// Keys (as append got them) or values of one KV head of the first sequence at these positions: [positions][dim]. The cache must be
/// `full` and evaluated.
void read_vectors(const LayerCache& layer, codec::Role role, int head, std::span<const int64_t> positions, std::span<float> vectors);

}  // namespace tersor::cache
