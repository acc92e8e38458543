// Appending and attending: the result does not depend on how tokens were grouped into calls, and is what the window and the sinks say.
#include <gtest/gtest.h>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

using test::largest_error;

// Queries and weights are 16-bit integers (tests/kernels_cpu/kv_attend_test.cpp derives the bound): a few units of 2^-16 of the largest
// value, which is about 4.
constexpr double kTolerance = 3e-4;

const std::vector<std::pair<std::string, std::string>> kCodecs = {{"full", "full"},
                                                                  {"full:fp16", "full:fp16"},
                                                                  {"affine:8", "affine:8"},
                                                                  {"affine:3,group=32", "affine:3,group=32"},
                                                                  {"affine:5", "affine:2"},
                                                                  {"turboquant:1", "turboquant:1"},
                                                                  {"turboquant:4", "turboquant:4"},
                                                                  {"turboquant:6", "turboquant:3"},
                                                                  {"full", "affine:4"},
                                                                  {"affine:8", "turboquant:2"},
                                                                  {"turboquant:5,rounds=1", "full"},
                                                                  {"affine:4,group=32,axis=channel", "affine:4"},
                                                                  {"affine:2,axis=channel", "turboquant:4"}};

// Tokens of the recent slab that the next row may need, decoded.
std::vector<float> recent_numbers(const LayerCache& cache) {
  const LayerCache::State& s = cache.state();
  if (!s.recent) return {};
  std::vector<float> numbers;
  const int from = static_cast<int>(std::max<int64_t>(0, s.tokens - s.window + 1) - s.recent->first);
  for (const bool keys : {true, false}) {
    const Rows all = test::decoded(*s.recent, keys), needed = part(all, from, all.tokens - from);
    numbers.insert(numbers.end(), needed.data.begin(), needed.data.end());
  }
  return numbers;
}

void expect_grouping_does_not_matter(const Setting& setting, int tokens, const std::vector<int>& chunks) {
  SCOPED_TRACE(setting.str());
  const Conversation talk(setting, tokens, 7);
  LayerCache whole = setting.make();
  const Rows expected = talk.run(whole, 0, tokens, tokens);
  EXPECT_LE(largest_error(expected, Expected(talk, whole).rows(0, tokens)), kTolerance) << "in one piece";
  for (const int chunk : chunks) {
    LayerCache cache = setting.make();
    EXPECT_LE(largest_error(talk.run(cache, 0, tokens, chunk), expected), kTolerance) << "chunks of " << chunk;
    EXPECT_EQ(body_bytes(cache), body_bytes(whole)) << "chunks of " << chunk;
    EXPECT_EQ(recent_numbers(cache), recent_numbers(whole)) << "chunks of " << chunk;
    EXPECT_EQ(cache.tokens(), tokens);
  }
}

TEST(Append, GroupingDoesNotMatter) {
  for (const auto& [keys, values] : kCodecs)
    for (const auto& [window, sinks] : {std::pair{0, 0}, {40, 5}}) {
      if (window && keys.starts_with("full") && values.starts_with("full")) continue;  // has no window
      expect_grouping_does_not_matter({keys, values, window, sinks}, 300, {1, 7, 64});
    }
}

TEST(Append, GroupingDoesNotMatterAcrossSeveralSlabs) {
  Setting setting{.keys = "turboquant:4", .values = "affine:4", .window = 100, .sinks = 4};
  setting.shape = {1, 1, 64, 64}, setting.query_heads = 2;
  expect_grouping_does_not_matter(setting, 1100, {1, 7, 64, 512});
  setting.window = setting.sinks = 0;
  expect_grouping_does_not_matter(setting, 1100, {1, 7, 64, 512});
}

TEST(Append, GroupingDoesNotMatterWithComposedOperations) {
  for (const auto& [keys, values] : {std::pair{"turboquant:4", "turboquant:4"}, {"affine:8", "turboquant:3"}, {"full", "full"}})
    for (const auto& [window, sinks] : {std::pair{0, 0}, {20, 3}}) {
      Setting setting{keys, values, window, sinks, Policy::forbid};
      setting.shape = {1, 1, 64, 64}, setting.query_heads = 2;
      expect_grouping_does_not_matter(setting, 100, {1, 7, 64});
    }
}

TEST(Append, KernelsAndComposedOperationsAgree) {
  for (const auto& [keys, values] : kCodecs) {
    Setting fast{keys, values, 24, 3}, composed = fast;
    composed.policy = Policy::forbid;
    const Conversation talk(fast, 130, 8);
    LayerCache a = fast.make(), b = composed.make();
    EXPECT_LE(largest_error(talk.run(a, 0, 130, 65), talk.run(b, 0, 130, 65)), 0.02) << fast.str() << ": one code next to a border at most";
    for (const ops::Choice& choice : b.choices()) EXPECT_FALSE(choice.fast);
  }
}

TEST(Append, OtherShapesAndTypes) {
  for (const Policy policy : kPolicies)
    for (const LayerShape& shape : {LayerShape{2, 3, 80, 128}, {2, 1, 128, 64}, {1, 2, 96, 96}, {3, 1, 256, 32}}) {
      Setting setting{.keys = "turboquant:4", .values = "affine:5", .window = 17, .sinks = 2, .policy = policy};
      setting.shape = shape, setting.query_heads = shape.kv_heads * 3;
      expect_grouping_does_not_matter(setting, 90, {13});
    }
}

// A 16-bit window rounds the full-precision tokens; the rest stays.
TEST(Append, WindowsOfSixteenBits) {
  for (const auto& [type, tolerance] : {std::pair{Dtype::f16, 4e-3}, {Dtype::bf16, 3e-2}}) {
    Setting setting{.keys = "turboquant:3", .values = "turboquant:3", .window = 50, .sinks = 4, .full_dtype = type};
    const Conversation talk(setting, 200, 9);
    LayerCache cache = setting.make();
    const Rows out = talk.run(cache, 0, 200, 20);
    EXPECT_LE(largest_error(out, Expected(talk, cache).rows(0, 200)), tolerance);
  }
}

// Windows and sinks of every relation to each other, to the blocks and to the number of tokens.
TEST(Append, WindowsAndSinksOfManySizes) {
  for (const int window : {0, 1, 2, 15, 16, 17, 64, 150, 1000})
    for (const int sinks : {0, 1, 16, 70, 300})
      for (const int chunk : {1, 33, 150}) {
        Setting setting{.keys = "turboquant:2", .values = "affine:2", .window = window, .sinks = sinks};
        setting.shape = {1, 1, 64, 64}, setting.query_heads = 2;
        SCOPED_TRACE(setting.str() + " chunk " + std::to_string(chunk));
        const Conversation talk(setting, 150, window + sinks);
        LayerCache cache = setting.make();
        const Rows out = talk.run(cache, 0, 150, chunk);
        EXPECT_LE(largest_error(out, Expected(talk, cache).rows(0, 150)), kTolerance);
      }
}

// A window that holds everything makes the codec invisible.
TEST(Append, ALargeWindowIsFullPrecision) {
  Setting coarse{.keys = "turboquant:1", .values = "turboquant:1", .window = 500}, full{.keys = "full", .values = "full"};
  const Conversation talk(coarse, 120, 10);
  LayerCache a = coarse.make(), b = full.make();
  EXPECT_LE(largest_error(talk.run(a, 0, 120, 30), talk.run(b, 0, 120, 30)), kTolerance);
}

TEST(Append, ReservingChangesNothingButTheMemory) {
  for (const int window : {0, 40}) {
    const Setting setting{.window = window, .sinks = window / 10};
    const Conversation talk(setting, 700, 11);
    LayerCache grown = setting.make(), reserved = setting.make(), late = setting.make();
    reserved.reserve(700);
    EXPECT_EQ(reserved.tokens(), 0);
    const uint64_t before = reserved.bytes();
    const Rows expected = talk.run(grown, 0, 700, 50);
    EXPECT_LE(largest_error(talk.run(reserved, 0, 700, 50), expected), kTolerance);
    EXPECT_EQ(body_bytes(reserved), body_bytes(grown));
    EXPECT_EQ(reserved.state().body.size(), 1u);
    EXPECT_GT(grown.state().body.size(), 1u);
    if (window == 0) { EXPECT_EQ(reserved.bytes(), before); }
    talk.run(late, 0, 300, 50);
    late.reserve(700), late.reserve(10);
    talk.run(late, 300, 700, 50);
    EXPECT_EQ(body_bytes(late), body_bytes(grown));
  }
}

// Arrays that were not evaluated yet are part of the graph: nothing has to be evaluated in between.
TEST(Append, NothingNeedsToBeEvaluatedInBetween) {
  for (const Policy policy : kPolicies) {
    const Setting setting{.window = 20, .sinks = 2, .policy = policy};
    const Conversation talk(setting, 90, 12);
    LayerCache eager = setting.make(), lazy = setting.make();
    const Rows expected = talk.run(eager, 0, 90, 9);
    std::vector<mx::array> outputs;
    for (int at = 0; at < 90; at += 9) {
      talk.append(lazy, at, 9);
      outputs.push_back(lazy.attend(array_of(part(talk.q, at, 9))));
    }
    for (int i = 9; i >= 0; --i)
      EXPECT_LE(largest_error(test::rows_of(outputs[i], talk.q.heads, 64), part(expected, 9 * i, 9)), kTolerance) << i;
  }
}

TEST(Append, WrongShapesAreRefusedAndLeaveTheCacheAsItWas) {
  const Setting setting{.window = 20, .sinks = 2};
  const Conversation talk(setting, 40, 13);
  LayerCache cache = setting.make(), untouched = setting.make();
  talk.run(cache, 0, 20, 20), talk.run(untouched, 0, 20, 20);
  const mx::array good = array_of(part(talk.k, 20, 5)), other_length = array_of(part(talk.v, 20, 4));
  EXPECT_THROW(cache.append(good, other_length), std::invalid_argument);
  EXPECT_THROW(cache.append(mx::zeros({1, 5, 100}), good), std::invalid_argument);
  EXPECT_THROW(cache.append(mx::zeros({2, 5, 128}), mx::zeros({2, 5, 128})), std::invalid_argument);
  EXPECT_THROW(cache.append(mx::zeros({128}), mx::zeros({128})), std::invalid_argument);
  EXPECT_THROW(cache.append(mx::zeros({1, 5, 128}, mx::int32), mx::zeros({1, 5, 128}, mx::int32)), std::invalid_argument);
  EXPECT_THROW(cache.attend(mx::zeros({1, 1, 100})), std::invalid_argument);
  EXPECT_THROW(cache.attend(mx::zeros({1, 21, 384})), std::invalid_argument);
  EXPECT_THROW(cache.attend(mx::zeros({2, 1, 384})), std::invalid_argument);
  EXPECT_EQ(cache.tokens(), 20);
  EXPECT_EQ(largest_error(talk.run(cache, 20, 40, 5), talk.run(untouched, 20, 40, 5)), 0);
  EXPECT_THROW(setting.make().attend(mx::zeros({1, 1, 384})), std::invalid_argument);
}

TEST(Append, NoTokensAreNoChange) {
  const Setting setting;
  LayerCache cache = setting.make();
  cache.append(mx::zeros({1, 0, 128}), mx::zeros({1, 0, 128}));
  EXPECT_EQ(cache.tokens(), 0);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace tersor::cache
