// Moving encoded tokens between slabs: whole blocks of bytes, never decoded.
#pragma once

#include <span>

#include "ops/kv.h"

namespace tersor::cache {

namespace mx = mlx::core;

/// A slab of another capacity with the tokens from position `first` on; `first` must lie on a block boundary.
ops::KvSlab moved(const ops::KvSlab& slab, int64_t first, int64_t capacity);

/// The same bytes in memory of their own, once evaluated. A real operation: MLX's copy would share what append writes in place.
mx::array own_memory(const mx::array& bytes);

/// One slab with the tokens of consecutive slabs and no room to spare beyond the last block.
ops::KvSlab joined(std::span<const ops::KvSlab> slabs);

}  // namespace tersor::cache
