#include "base/prefetch.h"

#include <algorithm>
#include <cstdlib>

namespace tersor::prefetch {
namespace {

constexpr size_t kRegions = 4, kWorkers = 64, kLine = 64;

struct alignas(64) Cursor {
  uint32_t epoch = 0;
  size_t region = 0, at = 0, left = 0;
};
struct Board {
  std::atomic<uint32_t> epoch{0};
  std::atomic<size_t> count{0};
  Region regions[kRegions];
  size_t workers = 2;
};
Board board;
Cursor cursors[kWorkers];

}  // namespace

void expect(const Region* regions, size_t count) {
  count = std::min(count, kRegions);
  std::copy_n(regions, count, board.regions);
  board.count.store(count, std::memory_order_relaxed);
  board.epoch.fetch_add(1, std::memory_order_release);
}

void advance(size_t worker, size_t lines) {
  Cursor& c = cursors[worker];
  if (lines == 0) return;
  const uint32_t epoch = board.epoch.load(std::memory_order_acquire);
  if (c.epoch != epoch) {
    c = {epoch, 0, 0, knobs.budget};
    if (board.count > 0) c.at = worker * board.regions[0].chunk;
  }
  lines = std::min(lines, c.left);
  while (lines > 0 && c.region < board.count) {
    const Region& r = board.regions[c.region];
    if (c.at >= r.bytes) {
      ++c.region;
      if (c.region < board.count) c.at = worker * board.regions[c.region].chunk;
      continue;
    }
    __builtin_prefetch(r.data + c.at, 0, 2);
    --lines, --c.left;
    c.at += kLine;
    if (c.at % r.chunk == 0) c.at += (board.workers - 1) * r.chunk;
  }
}

}  // namespace tersor::prefetch
