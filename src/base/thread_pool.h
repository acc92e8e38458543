// One pool of threads for the whole process, built for many short parallel regions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tersor {

/// The caller is worker 0 and takes part; helpers spin for a short while between regions and then sleep, so a
/// region costs well under a microsecond when regions follow each other closely and nothing when there are none. Nobody waits for
/// a helper that has not begun: where another process holds the CPU, the caller does the work alone.
/// The number of threads is TERSOR_THREADS, or else the number of CPUs this process may use (affinity and cgroup quota).
/// Thread-safe: a second thread that calls run() meanwhile, or a task that calls it again, does its work alone.
class ThreadPool {
 public:
  static ThreadPool& instance();
  explicit ThreadPool(size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return helpers_.size() + 1; }

  /// Calls f(task, worker) once for every task in [0, tasks); worker < size(). Tasks are handed out in order as
  /// workers become free. Returns when all are done; everything written by tasks is visible to the caller. f must not throw.
  template <class F>
  void run(size_t tasks, F&& f) {
    call(tasks, Order::first_come, f);
  }
  /// The same for tasks that read memory one after the other: every worker begins with a run of tasks of its own, in order, so that its
  /// reading goes on from task to task, and when it is done takes tasks from the ends of the others' runs.
  template <class F>
  void run_streams(size_t tasks, F&& f) {
    call(tasks, Order::streams, f);
  }

 private:
  using Task = void (*)(void*, size_t task, size_t worker);
  enum class Order { first_come, streams };

  template <class F>
  void call(size_t tasks, Order order, F& f) {
    using Fn = std::remove_reference_t<F>;
    if (tasks == 0) return;
    run_erased(
        tasks, order, [](void* arg, size_t task, size_t worker) { (*static_cast<Fn*>(arg))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
  void run_erased(size_t tasks, Order order, Task task, void* arg);
  void helper(size_t worker);
  bool join();
  void drain(size_t worker);
  void drain_streams(size_t worker);

  static constexpr uint32_t kOpen = 1u << 31;

  std::mutex busy_;                  // held for the length of a region
  std::atomic<uint32_t> epoch_{0};   // bumped once a region; helpers wait on it
  std::atomic<uint32_t> region_{0};  // kOpen while helpers may join, plus the number of those that have
  std::atomic<size_t> next_{0};
  // A worker's own tasks: the first in the lower half, the end in the upper one.
  struct alignas(64) Run {
    std::atomic<uint64_t> left{0};
  };
  std::unique_ptr<Run[]> runs_;
  Order order_ = Order::first_come;
  size_t tasks_ = 0;
  Task task_ = nullptr;
  void* arg_ = nullptr;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace tersor
