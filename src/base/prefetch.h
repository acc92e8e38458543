// Weights that will be read soon, fetched into the second-level cache while the memory bus is idle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tersor::prefetch {

/// One run of memory that tasks will read in order, `chunk` bytes each.
struct Region {
  const uint8_t* data = nullptr;
  size_t bytes = 0, chunk = 0;
};

/// Says what comes next; forgets what was said before. Not while a parallel region runs.
void expect(const Region* regions, size_t count);
/// Fetches up to `lines` cache lines of this worker's share.
void advance(size_t worker, size_t lines);
inline thread_local size_t this_worker = 0;
struct Knobs { size_t wait = 4, tile = 32, budget = 6144; };
inline Knobs knobs;

}  // namespace tersor::prefetch
