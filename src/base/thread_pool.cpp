#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tersor/base.h"

namespace tersor {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs granted by a cgroup v2 quota ("max 100000" or "200000 100000"), or 0 when there is none.
size_t cgroup_cpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return static_cast<size_t>(std::max(1.0, std::floor(std::strtod(quota.c_str(), nullptr) / period)));
}

size_t default_threads() {
  if (const char* text = std::getenv("TERSOR_THREADS"); text && *text) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end || value < 1 || value > 1024)
      throw Error("TERSOR_THREADS is \"" + std::string(text) + "\": give a number of threads from 1 to 1024");
    return static_cast<size_t>(value);
  }
  cpu_set_t set;
  size_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<size_t>(CPU_COUNT(&set)) : std::thread::hardware_concurrency();
  if (const size_t quota = cgroup_cpus()) cpus = std::min(cpus, quota);
  return std::max<size_t>(1, cpus);
}

// How long a helper spins before it sleeps: longer than the gaps between the nodes of one decode step.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kSpinsPerClockRead = 64;
constexpr int kSpinsBeforeYield = 10000;

// True inside a task of any pool: nested regions run alone.
thread_local bool inside_region = false;

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool pool(default_threads());
  return pool;
}

ThreadPool::ThreadPool(size_t threads) : runs_(std::make_unique<Run[]>(std::max<size_t>(1, threads))) {
  for (size_t worker = 1; worker < threads; ++worker) helpers_.emplace_back([this, worker] { helper(worker); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& thread : helpers_) thread.join();
}

void ThreadPool::drain_streams(size_t worker) {
  constexpr uint64_t kFirst = 1, kEnd = uint64_t{1} << 32;
  for (size_t i = 0; i < size(); ++i) {
    std::atomic<uint64_t>& left = runs_[(worker + i) % size()].left;
    for (uint64_t now = left.load(std::memory_order_relaxed); (now & (kEnd - 1)) < now >> 32;) {
      if (!left.compare_exchange_weak(now, i == 0 ? now + kFirst : now - kEnd, std::memory_order_relaxed)) continue;
      task_(arg_, i == 0 ? now & (kEnd - 1) : (now >> 32) - 1, worker);
      now = left.load(std::memory_order_relaxed);
    }
  }
}

void ThreadPool::drain(size_t worker) {
  if (order_ == Order::streams) return drain_streams(worker);
  for (size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) task_(arg_, task, worker);
}

void ThreadPool::helper(size_t worker) {
  inside_region = true;
  for (uint32_t seen = 0;;) {
    auto sleep_at = std::chrono::steady_clock::now() + kSpin;
    for (int spins = 1; epoch_.load(std::memory_order_acquire) == seen; ++spins) {
      pause_cpu();
      if (spins % kSpinsPerClockRead == 0 && std::chrono::steady_clock::now() > sleep_at) epoch_.wait(seen, std::memory_order_acquire);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    if (!join()) continue;
    drain(worker);
    region_.fetch_sub(1, std::memory_order_release);
  }
}

bool ThreadPool::join() {
  uint32_t state = region_.load(std::memory_order_relaxed);
  while (state & kOpen)
    if (region_.compare_exchange_weak(state, state + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  return false;
}

void ThreadPool::run_erased(size_t tasks, Order order, Task task, void* arg) {
  std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
  if (tasks == 1 || helpers_.empty() || inside_region || !lock.try_lock()) {
    for (size_t i = 0; i < tasks; ++i) task(arg, i, 0);
    return;
  }
  inside_region = true;
  tasks_ = tasks;
  task_ = task;
  arg_ = arg;
  order_ = order;
  next_.store(0, std::memory_order_relaxed);
  if (order == Order::streams)
    for (uint64_t w = 0, n = tasks, all = size(); w < all; ++w)
      runs_[w].left.store(n * w / all | (n * (w + 1) / all) << 32, std::memory_order_relaxed);
  region_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  drain(0);
  region_.fetch_and(~kOpen, std::memory_order_acquire);
  // A helper that joined may have lost its CPU to another process: after a while, let it run.
  for (int spins = 0; region_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield)
      pause_cpu();
    else
      std::this_thread::yield();
  }
  inside_region = false;
}

}  // namespace tersor
