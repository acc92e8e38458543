#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tersor {
namespace {

class Pools : public testing::TestWithParam<size_t> {};

TEST_P(Pools, EveryTaskRunsOnceAndItsWritesAreSeen) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), GetParam());
  for (const size_t tasks : {0u, 1u, 2u, 7u, 64u, 1000u}) {
    std::vector<int> count(tasks);  // plain ints: the pool itself must order the writes
    std::vector<size_t> worker_of(tasks, SIZE_MAX);
    pool.run(tasks, [&](size_t task, size_t worker) { ++count[task], worker_of[task] = worker; });
    for (size_t task = 0; task < tasks; ++task) {
      ASSERT_EQ(count[task], 1) << task;
      ASSERT_LT(worker_of[task], pool.size());
    }
  }
}

TEST_P(Pools, ManyShortRegionsFollowEachOther) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(pool.size() * 16);
  constexpr int kRegions = 200;
  for (int region = 0; region < kRegions; ++region)
    pool.run(4, [&](size_t task, size_t worker) { sums[worker * 16] += static_cast<int64_t>(task); });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), kRegions * 6);
}

TEST_P(Pools, HelpersThatFellAsleepWakeUp) {
  ThreadPool pool(GetParam());
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> done = 0;
    pool.run(8, [&](size_t, size_t) { ++done; });
    EXPECT_EQ(done, 8);
  }
}

TEST_P(Pools, ATaskMayStartARegionOfItsOwn) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner = 0;
  pool.run(4, [&](size_t, size_t) { pool.run(5, [&](size_t, size_t) { ++inner; }); });
  EXPECT_EQ(inner, 20);
}

TEST_P(Pools, SeveralThreadsMayCallAtOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      for (int region = 0; region < 50; ++region) {
        std::vector<int> count(6);
        pool.run(count.size(), [&](size_t task, size_t) { ++count[task]; });
        total += std::accumulate(count.begin(), count.end(), 0);
      }
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total, 3 * 50 * 6);
}

TEST_P(Pools, EveryTaskOfStreamsRunsOnceHoweverLongItTakes) {
  ThreadPool pool(GetParam());
  for (int region = 0; region < 60; ++region)
    for (const size_t tasks : {0u, 1u, 2u, 3u, 5u, 8u, 97u}) {
      std::vector<int> count(tasks);
      const auto one = [&](size_t task, size_t) {
        if (task % 7 == static_cast<size_t>(region) % 7) std::this_thread::sleep_for(std::chrono::microseconds(3));
        ++count[task];
      };
      region % 3 ? pool.run_streams(tasks, one) : pool.run(tasks, one);  // both kinds follow one another
      ASSERT_EQ(std::accumulate(count.begin(), count.end(), 0), static_cast<int>(tasks));
      for (const int times : count) ASSERT_EQ(times, 1);
    }
}

TEST_P(Pools, AWorkerTakesItsOwnStreamInOrder) {
  ThreadPool pool(GetParam());
  constexpr size_t kTasks = 240;
  std::vector<std::vector<size_t>> taken(pool.size());
  pool.run_streams(kTasks, [&](size_t task, size_t worker) { taken[worker].push_back(task); });
  for (size_t worker = 0; worker < pool.size(); ++worker) {
    const size_t begin = kTasks * worker / pool.size(), end = kTasks * (worker + 1) / pool.size();
    size_t next = begin;
    for (const size_t task : taken[worker])
      if (task >= begin && task < end) {
        EXPECT_EQ(task, next) << "of worker " << worker;
        next = task + 1;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Pools, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace tersor
