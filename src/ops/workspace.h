// Scratch memory of graph nodes, kept by each thread that runs them so that a decode step allocates nothing.
#pragma once

#include <cstddef>

namespace tersor::ops {

/// At least `floats` floats, aligned to 64 bytes, owned by the calling thread until it asks again.
float* workspace(size_t floats);

}  // namespace tersor::ops
