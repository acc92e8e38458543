#include "cli/limits.h"

#include <atomic>
#include <cstring>

#include "base/huge_memory.h"
#include "base/thread_pool.h"
#include "cli/bench.h"
#include "kernels/cpu/limits.h"

namespace tersor::cli {
namespace {

constexpr size_t kBytes = size_t{256} << 20;  // several times any last-level cache
constexpr size_t kPieces = 64;
constexpr size_t kRounds = 2'000'000;

std::atomic<uint64_t> kept;  // what is computed is used

// Operations a second of `one`, which returns how many it did, with one call a thread.
template <class Number, class F>
double rate(F&& one) {
  ThreadPool& pool = ThreadPool::instance();
  std::atomic<double> operations = 0;
  const double seconds = timed([&] {
    pool.run(pool.size(), [&](size_t, size_t) {
      Number sink[2] = {1, 0};
      const double done = one(kRounds, sink);
      kept += static_cast<uint64_t>(sink[0]);
      for (double was = operations; !operations.compare_exchange_weak(was, was + done);) {}
    });
  });
  return operations / seconds;
}

}  // namespace

Limits::Limits() : memory_(huge_memory(kBytes)) { std::memset(memory_.get(), 1, kBytes); }

double Limits::read_bytes_per_second() const {
  const double seconds = timed([&] {
    ThreadPool::instance().run(
        kPieces, [&](size_t piece, size_t) { kept += kernels::read_once(memory_.get() + piece * (kBytes / kPieces), kBytes / kPieces); });
  });
  return static_cast<double>(kBytes) / seconds;
}

double Limits::float_ops_per_second() const { return rate<float>(kernels::float_operations); }
double Limits::integer_ops_per_second() const { return rate<int32_t>(kernels::integer_operations); }

double Limits::region_seconds() const {
  constexpr int kRegions = 20000;
  ThreadPool& pool = ThreadPool::instance();
  return timed([&] {
           for (int i = 0; i < kRegions; ++i) pool.run(pool.size(), [](size_t, size_t worker) { kept.fetch_or(worker >> 32); });
         }) /
         kRegions;
}

}  // namespace tersor::cli
