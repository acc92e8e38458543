// Trimming and copying: afterwards a cache equals one that never saw the tokens, or it says that it cannot and removes nothing.
#include <gtest/gtest.h>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

using test::largest_error;

constexpr double kTolerance = 3e-4;
constexpr int kPrefill = 300, kSteps = 20, kTokens = kPrefill + kSteps, kMore = 40;

// The conversation of a prefill of 300 tokens and 20 single steps, with 40 tokens more to come.
void fill(const Conversation& talk, LayerCache& cache) {
  talk.run(cache, 0, kPrefill, kPrefill);
  talk.run(cache, kPrefill, kTokens, 1);
}

// A conversation that says `before` up to token `at` and then what `after` says at its end.
Conversation spliced(const Conversation& before, const Conversation& after, int at) {
  Conversation result = before;
  for (const auto member : {&Conversation::k, &Conversation::v, &Conversation::q}) {
    Rows rows((before.*member).batch, (before.*member).heads, at + kMore, (before.*member).dim);
    for (int b = 0; b < rows.batch; ++b)
      for (int h = 0; h < rows.heads; ++h) {
        std::copy_n((before.*member).row(b, h, 0), static_cast<size_t>(at) * rows.dim, rows.row(b, h, 0));
        std::copy_n((after.*member).row(b, h, 0), static_cast<size_t>(kMore) * rows.dim, rows.row(b, h, at));
      }
    result.*member = rows;
  }
  return result;
}

void expect_like_one_that_never_saw_them(const Setting& setting, int k) {
  SCOPED_TRACE(setting.str() + " trim " + std::to_string(k));
  const Conversation talk(setting, kTokens, 20), other(setting, kMore, 21), expected_talk = spliced(talk, other, kTokens - k);
  LayerCache cache = setting.make(), fresh = setting.make();
  fill(talk, cache);
  const int64_t trimmable = cache.trimmable();
  if (k > trimmable && k != kTokens) {
    EXPECT_EQ(cache.trim(k), 0);
    EXPECT_EQ(cache.tokens(), kTokens);
    return;
  }
  ASSERT_EQ(cache.trim(k), k);
  ASSERT_EQ(cache.tokens(), kTokens - k);
  if (k < kTokens) {
    const int row = kTokens - k - 1;
    EXPECT_LE(largest_error(talk.attend(cache, row, 1), Expected(expected_talk, cache).rows(row, 1)), kTolerance) << "right after";
    expected_talk.run(fresh, 0, kTokens - k, kPrefill);
  }
  for (int at = kTokens - k, step = 1; at < kTokens - k + kMore; at += step, step = 13)
    EXPECT_LE(largest_error(expected_talk.run(cache, at, at + step, step), expected_talk.run(fresh, at, at + step, step)), kTolerance);
  EXPECT_EQ(cache.tokens(), fresh.tokens());
  EXPECT_EQ(body_numbers(cache), body_numbers(fresh));
}

const std::vector<int> kTrims = {1, 20, 31, 32, 33, 63, 64, 65, 255, 256, 300, 301, 319, 320};

TEST(Trim, LikeACacheThatNeverSawTheTokens) {
  for (const int k : kTrims)
    for (const auto& [keys, values] :
         {std::pair{"turboquant:4", "turboquant:4"}, {"affine:4,group=32", "full"}, {"affine:4,group=32,axis=channel", "affine:4"}})
      expect_like_one_that_never_saw_them({keys, values}, k);
}

TEST(Trim, WithAWindowAndSinks) {
  for (const int window : {1, 48, 310, 1000})
    for (const int k : kTrims)
      expect_like_one_that_never_saw_them({.keys = "turboquant:3", .values = "affine:4", .window = window, .sinks = 30}, k);
}

TEST(Trim, WithComposedOperations) {
  for (const int k : {1, 20, 33, 256, 320})
    for (const int window : {0, 48}) expect_like_one_that_never_saw_them({.window = window, .sinks = 4, .policy = Policy::forbid}, k);
}

TEST(Trim, AWindowCanAlwaysTakeBackASpeculation) {
  const Setting setting{.window = 64, .sinks = 4};
  const Conversation talk(setting, 500, 22);
  LayerCache cache = setting.make();
  for (int at = 0; at < 400; at += 9) {
    talk.run(cache, at, at + 9, 9);
    EXPECT_GE(cache.trimmable(), std::min<int64_t>(kRewindMargin, cache.tokens())) << at;
  }
}

TEST(Trim, AllOrNothing) {
  const Setting setting{.window = 32};
  const Conversation talk(setting, kTokens, 23);
  LayerCache cache = setting.make();
  EXPECT_EQ(cache.trimmable(), 0);
  EXPECT_EQ(cache.trim(1), 0);
  fill(talk, cache);
  for (const int64_t n : {int64_t{0}, int64_t{-1}, int64_t{kTokens + 1}, int64_t{1} << 40, std::numeric_limits<int64_t>::min()})
    EXPECT_EQ(cache.trim(n), 0);
  const int64_t trimmable = cache.trimmable();
  EXPECT_EQ(cache.trim(trimmable + 1), 0);
  EXPECT_EQ(cache.tokens(), kTokens);
  EXPECT_EQ(cache.trim(trimmable), trimmable);
  EXPECT_EQ(cache.trim(cache.tokens()), kTokens - trimmable) << "everything can always go";
  EXPECT_EQ(cache.tokens(), 0);
  talk.run(cache, 0, 100, 10);
  EXPECT_EQ(cache.tokens(), 100);
}

TEST(Trim, LayersOfACacheMoveTogether) {
  const Setting setting;
  KvSpec spec = KvSpec::parse("turboquant:4,window=32,skip=0");
  KvCache cache(spec, 3, setting.shape, Dtype::f32, Policy::automatic);
  const Conversation talk(setting, kTokens, 24);
  for (int i = 0; i < 3; ++i) fill(talk, cache.layer(i));
  EXPECT_EQ(cache.layer(0).trimmable(), kTokens) << "the skipped layer has no window";
  EXPECT_EQ(cache.trimmable(), cache.layer(1).trimmable());
  EXPECT_EQ(cache.trim(200), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.layer(i).tokens(), kTokens);
  EXPECT_EQ(cache.trim(10), 10);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.layer(i).tokens(), kTokens - 10);
  EXPECT_EQ(cache.trim(kTokens - 10), kTokens - 10);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.layer(i).tokens(), 0);
}

// Attention that was asked for but not yet computed reads the tokens of its time, however many calls there were.
TEST(Trim, PendingAttentionIsNotOverwritten) {
  for (const Policy policy : kPolicies)
    for (const int window : {0, 48}) {
      const Setting setting{.window = window, .policy = policy};
      SCOPED_TRACE(setting.str());
      constexpr int kRows = kRewindMargin;
      const Conversation talk(setting, 200, 25), other(setting, kRows, 26);
      LayerCache cache = setting.make();
      talk.run(cache, 0, 200 - kRows, 200 - kRows);
      talk.append(cache, 200 - kRows, kRows);
      const Rows expected = talk.attend(cache, 200 - kRows, kRows), last = talk.attend(cache, 199, 1);
      const mx::array first = cache.attend(array_of(part(talk.q, 200 - kRows, kRows)));
      const mx::array second = cache.attend(array_of(part(talk.q, 199, 1)));
      ASSERT_EQ(cache.trim(kRows), kRows);
      other.append(cache, 0, kRows);
      mx::eval(cache.arrays());
      EXPECT_LE(largest_error(test::rows_of(first, talk.q.heads, 64), expected), kTolerance);
      EXPECT_LE(largest_error(test::rows_of(second, talk.q.heads, 64), last), kTolerance);
    }
}

// What was trimmed away must not come back as NaN times zero. The way around stale NaNs may round differently.
TEST(Trim, TrimmedNaNsLeaveNoTrace) {
  for (const Policy policy : kPolicies)
    for (const char* codec : {"full", "full:fp16", "turboquant:4"}) {
      const Setting setting{.keys = codec, .values = codec, .policy = policy};
      const Conversation talk(setting, 50, 27);
      LayerCache cache = setting.make(), clean = setting.make();
      talk.run(cache, 0, 37, 37), talk.run(clean, 0, 37, 37);
      const mx::array bad = mx::full({1, 9, 128}, std::numeric_limits<float>::quiet_NaN());
      cache.append(bad, bad);
      mx::eval(cache.attend(array_of(part(talk.q, 0, 9))));
      ASSERT_EQ(cache.trim(9), 9);
      EXPECT_LE(largest_error(talk.attend(cache, 36, 1), talk.attend(clean, 36, 1)), 1e-6) << setting.str();
      EXPECT_LE(largest_error(talk.run(cache, 37, 40, 1), talk.run(clean, 37, 40, 1)), 1e-6) << setting.str();
    }
}

TEST(Copy, IsIndependent) {
  for (const Policy policy : kPolicies)
    for (const int window : {0, 40}) {
      const Setting setting{.window = window, .sinks = window / 8, .policy = policy};
      SCOPED_TRACE(setting.str());
      const Conversation talk(setting, 150, 30), other(setting, 150, 31);
      LayerCache original = setting.make(), fresh = setting.make();
      talk.run(original, 0, 100, 50), talk.run(fresh, 0, 100, 50);
      LayerCache copy = original.copy();
      EXPECT_EQ(copy.tokens(), 100);
      const std::vector<uint8_t> before = body_bytes(original);
      other.run(copy, 100, 150, 10);
      EXPECT_EQ(body_bytes(original), before);
      EXPECT_EQ(original.tokens(), 100);
      const std::vector<uint8_t> copied = body_bytes(copy);
      const Rows expected = talk.run(fresh, 100, 150, 10);
      EXPECT_EQ(largest_error(talk.run(original, 100, 150, 10), expected), 0);
      EXPECT_EQ(body_bytes(copy), copied);
      EXPECT_EQ(body_bytes(original), body_bytes(fresh));
    }
}

// A copy is a snapshot even where appends and attention are still pending and the original goes on at once, in place.
TEST(Copy, OfACacheInUse) {
  for (const int window : {0, 40}) {
    const Setting setting{.window = window, .sinks = window / 8};
    const Conversation talk(setting, 200, 32), other(setting, 200, 33);
    LayerCache original = setting.make(), fresh = setting.make();
    const Rows expected = talk.run(fresh, 0, 200, 20);
    std::vector<std::pair<int, LayerCache>> snapshots;
    std::vector<mx::array> outputs;
    for (int at = 0; at < 200; at += 20) {
      talk.append(original, at, 20);
      snapshots.emplace_back(at + 20, original.copy());
      outputs.push_back(original.attend(array_of(part(talk.q, at, 20))));
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_LE(largest_error(test::rows_of(outputs[i], talk.q.heads, 64), part(expected, static_cast<int>(20 * i), 20)), kTolerance);
    for (auto& [tokens, snapshot] : snapshots) {
      EXPECT_EQ(snapshot.tokens(), tokens);
      EXPECT_LE(largest_error(talk.attend(snapshot, tokens - 1, 1), part(expected, tokens - 1, 1)), kTolerance) << tokens;
      if (tokens == 200) continue;
      other.run(snapshot, tokens, tokens + 1, 1);
      EXPECT_EQ(snapshot.trim(1), 1);
      EXPECT_LE(largest_error(talk.run(snapshot, tokens, 200, 20), part(expected, tokens, 200 - tokens)), kTolerance) << tokens;
    }
    EXPECT_EQ(body_bytes(original), body_bytes(fresh));
  }
}

TEST(Copy, OfAnEmptyCache) {
  const Setting setting{.window = 16, .sinks = 2};
  const Conversation talk(setting, 50, 34);
  LayerCache cache = setting.make(), copy = cache.copy();
  EXPECT_EQ(largest_error(talk.run(copy, 0, 50, 10), talk.run(cache, 0, 50, 10)), 0);
}

TEST(Copy, OfAWholeCacheKeepsEverything) {
  const Setting setting;
  const Conversation talk(setting, 60, 35);
  KvCache cache(KvSpec::parse("turboquant:4,window=16,sinks=2,skip=-1"), 3, setting.shape, Dtype::f16, Policy::automatic);
  for (int i = 0; i < 3; ++i) talk.run(cache.layer(i), 0, 60, 60);
  const KvCache copy = cache.copy();
  EXPECT_EQ(copy.spec().str(), cache.spec().str());
  EXPECT_EQ(copy.full_dtype(), Dtype::f16);
  EXPECT_EQ(copy.bytes(), cache.bytes());
  EXPECT_EQ(cache.trim(10), 10);
  EXPECT_EQ(copy.tokens(), 60);
  EXPECT_EQ(copy.report().size(), 3u);
}

}  // namespace
}  // namespace tersor::cache
