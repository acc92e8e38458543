// What a cache will take, before it is made.
#pragma once

#include "tersor/cache.h"

namespace tersor::cache {

/// Bytes of a KvCache that holds `tokens`, spare room and constants aside. Throws Error when a codec does not fit the head size.
uint64_t expected_bytes(const KvSpec& spec, int layers, const LayerShape& shape, Dtype full_dtype, int64_t tokens);

}  // namespace tersor::cache
