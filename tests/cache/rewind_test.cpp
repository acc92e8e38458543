// Rewinding further than full precision reaches: the tokens before the new end are read from their codes, and the window fills again.
#include <gtest/gtest.h>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

using test::largest_error;

constexpr double kTolerance = 3e-4;
constexpr int kTokens = 300;

Setting windowed(Policy policy) {
  Setting s;
  s.window = 24, s.sinks = 4, s.policy = policy;
  return s;
}

TEST(Rewind, ReadsFromCodesWhatTheWindowHasLost) {
  for (const Policy policy : kPolicies)
    for (const int n : {40, 77, 100, 255, 297}) {
      SCOPED_TRACE(std::string(name_of(policy)) + " " + std::to_string(n));
      const Conversation talk(windowed(policy), kTokens, 31);
      LayerCache cache = talk.setting.make();
      talk.run(cache, 0, kTokens, 50);
      ASSERT_LT(cache.trimmable(), n);
      ASSERT_EQ(cache.trim(n), 0);
      cache.rewind(n);
      const int left = kTokens - n;
      ASSERT_EQ(cache.tokens(), left);
      // The same tokens come again, one by one and then many: on both sides of a block's border.
      const Rows got = talk.run(cache, left, left + 20, 1);
      const Rows more = talk.run(cache, left + 20, std::min(left + 60, kTokens), 40);
      Expected expected(talk, cache);
      expected.window_begins_at((left + kRecentBlockTokens - 1) / kRecentBlockTokens * kRecentBlockTokens);
      EXPECT_LE(largest_error(got, expected.rows(left, 20)), kTolerance);
      EXPECT_LE(largest_error(more, expected.rows(left + 20, std::min(left + 60, kTokens) - left - 20)), kTolerance);
    }
}

// Keys of a group that is no longer full are taken from the codes it had.
TEST(Rewind, ReopensAGroupOfKeys) {
  for (const Policy policy : kPolicies)
    for (const int n : {44, 77, 100, 140, 255, 297}) {
      SCOPED_TRACE(std::string(name_of(policy)) + " " + std::to_string(n));
      Setting setting = windowed(policy);
      setting.keys = "affine:4,group=32,axis=channel", setting.values = "affine:4";
      const Conversation talk(setting, kTokens, 34);
      LayerCache cache = talk.setting.make();
      talk.run(cache, 0, kTokens, 50);
      ASSERT_LT(cache.trimmable(), n);
      Expected expected(talk, cache);
      cache.rewind(n);
      const int left = kTokens - n;
      expected.window_begins_at(left);
      LayerCache other = LayerCache::from_image(cache.image(), policy, setting.precision);
      const Rows got = talk.run(cache, left, left + 20, 1);
      EXPECT_LE(largest_error(got, expected.rows(left, 20)), kTolerance);
      EXPECT_EQ(largest_error(talk.run(other, left, left + 20, 1), got), 0);
      // The group fills again, from numbers that were codes once: a code further at most.
      const Rows rest = talk.run(cache, left + 20, kTokens, 7);
      LayerCache fresh = talk.setting.make();
      talk.run(fresh, 0, left + 20, 50);
      EXPECT_LE(largest_error(rest, talk.run(fresh, left + 20, kTokens, 7)), 0.3);
    }
}

TEST(Rewind, WithinTheWindowIsATrim) {
  const Conversation talk(windowed(Policy::automatic), kTokens, 32);
  LayerCache trimmed = talk.setting.make(), rewound = talk.setting.make();
  for (LayerCache* cache : {&trimmed, &rewound}) talk.run(*cache, 0, kTokens - 20, 70);
  ASSERT_EQ(trimmed.trim(6), 6);
  rewound.rewind(6);
  EXPECT_EQ(largest_error(talk.run(trimmed, kTokens - 26, kTokens, 1), talk.run(rewound, kTokens - 26, kTokens, 1)), 0);
}

TEST(Rewind, MoreThanThereIsLeavesNothing) {
  const Conversation talk(windowed(Policy::automatic), kTokens, 33);
  LayerCache cache = talk.setting.make(), fresh = talk.setting.make();
  talk.run(cache, 0, 100, 100);
  cache.rewind(1000);
  EXPECT_EQ(cache.tokens(), 0);
  cache.rewind(1);
  EXPECT_EQ(cache.tokens(), 0);
  EXPECT_EQ(largest_error(talk.run(cache, 0, 100, 30), talk.run(fresh, 0, 100, 30)), 0);
}

}  // namespace
}  // namespace tersor::cache
