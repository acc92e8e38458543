// Scratch memory of graph nodes, kept by each thread that runs them so that a decode step allocates nothing.
#pragma once

#include <cstddef>

namespace tersor::ops {

/// Who asks: a node's own buffers stay valid while the routines it calls use theirs.
enum class Workspace { routine, rows, node };

/// At least `floats` floats, aligned to 64 bytes, the calling thread's until it asks again for the same purpose.
float* workspace(size_t floats, Workspace purpose = Workspace::routine);

}  // namespace tersor::ops
