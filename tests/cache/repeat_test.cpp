// Steps that run again without being built again: the same numbers as steps that are built, and no repetition where it would be wrong.
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

constexpr int kHeads = 6, kKvHeads = 2, kDim = 64, kVocab = 50;

// A model of an embedding, a norm and one layer of attention: the token's row is query, key and value.
class Toy {
 public:
  explicit Toy(uint64_t number) : number_(number) {
    Random random(static_cast<unsigned>(number));
    table_ = {array_of(test::normal_rows(random, 1, 1, kVocab, (kHeads + 2 * kKvHeads) * kDim)), {}, {}, 0, 0, {}};
    table_.weight = mx::reshape(table_.weight, {kVocab, -1});
    mx::eval(table_.weight, norm_);
  }

  // The step's result and whether it was repeated.
  std::pair<mx::array, bool> step(KvCache& cache, int token) const {
    const mx::array ids({static_cast<int64_t>(token)}, {1, 1}, mx::int64);
    if (auto again = cache.repeat(ids, number_)) return {*again, true};
    return {cache.fuse(built(cache, ids), ids, number_), false};
  }
  // The same without a chance to be repeated.
  std::vector<float> plain(KvCache& cache, int token) const {
    const mx::array ids({static_cast<int64_t>(token)}, {1, 1}, mx::int64);
    return numbers(built(cache, ids));
  }
  static std::vector<float> numbers(mx::array x) {
    x.eval();
    return {x.data<float>(), x.data<float>() + x.size()};
  }

 private:
  mx::array built(KvCache& cache, const mx::array& ids) const {
    const auto norm = ops::choose("rms_norm", "", mx::float32, 0, Policy::automatic);
    const mx::array row = ops::rms_norm(ops::embed(ids, table_, mx::float32), norm_, 1e-5f, norm);
    const int q = kHeads * kDim, k = q + kKvHeads * kDim;
    const auto cut = [&](int begin, int end) { return mx::slice(row, {0, 0, begin}, {1, 1, end}); };
    cache.layer(0).append(cut(q, k), cut(k, row.shape(2)));
    return cache.layer(0).attend(cut(0, q));
  }

  uint64_t number_;
  mx::array norm_ = mx::ones({(kHeads + 2 * kKvHeads) * kDim});
  ops::LinearWeight table_{mx::array(0), {}, {}, 0, 0, {}};
};

KvCache make_cache(const std::string& spec) {  // KEYS/VALUES, or one for both
  const size_t slash = spec.find('/');
  const KvSpec parsed = slash == spec.npos ? KvSpec::parse(spec) : KvSpec::parse(spec.substr(0, slash), spec.substr(slash + 1));
  return KvCache(parsed, 1, {1, kKvHeads, kDim, kDim}, Dtype::f16, Policy::automatic);
}

class Repeat : public ::testing::TestWithParam<const char*> {};

TEST_P(Repeat, GivesTheNumbersOfStepsThatAreBuilt) {
  const Toy toy(3);
  KvCache cache = make_cache(GetParam()), expected = make_cache(GetParam());
  int repeated = 0;
  for (int i = 0; i < 400; ++i) {
    const int token = (i * i + 7 * i) % kVocab;
    auto [out, again] = toy.step(cache, token);
    repeated += again;
    ASSERT_EQ(Toy::numbers(out), toy.plain(expected, token)) << "token " << i << (again ? ", repeated" : "");
    ASSERT_EQ(cache.tokens(), i + 1);
  }
  EXPECT_GT(repeated, 290);
  cache.eval(), expected.eval();
  EXPECT_EQ(body_numbers(cache.layer(0)), body_numbers(expected.layer(0)));
}

INSTANTIATE_TEST_SUITE_P(Specs, Repeat,
                         ::testing::Values("full", "turboquant:4", "turboquant:3", "affine:8", "affine:4,window=20",
                                           "turboquant:4,centre=16", "turboquant:6,sinks=5", "turboquant:4,window=70,sinks=3",
                                           "affine:4,group=32,axis=channel/affine:4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(RepeatOfSteps, HappensOnlyWhereNothingCameBetween) {
  const Toy toy(4), other(5);
  KvCache cache = make_cache("turboquant:4");
  const auto step = [&](const Toy& model) {
    auto [out, again] = model.step(cache, 9);
    out.eval();
    return again;
  };
  EXPECT_FALSE(step(toy));
  EXPECT_FALSE(step(toy)) << "the first one made the buffer";
  EXPECT_TRUE(step(toy));
  EXPECT_TRUE(step(toy));
  EXPECT_FALSE(step(other)) << "another model";
  EXPECT_TRUE(step(other));
  EXPECT_FALSE(step(toy));
  EXPECT_EQ(cache.trim(2), 2);
  EXPECT_FALSE(step(toy)) << "after a trim";
  EXPECT_TRUE(step(toy));
  cache.layer(0);
  EXPECT_FALSE(step(toy)) << "after access to a layer";
  EXPECT_TRUE(step(toy));
  cache.reserve(5000);
  EXPECT_FALSE(step(toy)) << "after growth";
  KvCache copy = cache.copy();
  EXPECT_FALSE(toy.step(copy, 9).second) << "a copy has memory of its own";
}

TEST(RepeatOfSteps, LazyStepsRunInTheirOrder) {
  const Toy toy(6);
  KvCache cache = make_cache("turboquant:4,window=16"), expected = make_cache("turboquant:4,window=16");
  toy.step(cache, 0).first.eval(), toy.plain(expected, 0);
  std::vector<mx::array> lazy;
  for (int i = 1; i < 100; ++i) lazy.push_back(toy.step(cache, i % kVocab).first);
  mx::eval(lazy.back());  // nobody asked for the others yet
  for (int i = 1; i < 100; ++i) ASSERT_EQ(Toy::numbers(lazy[static_cast<size_t>(i) - 1]), toy.plain(expected, i % kVocab)) << i;
}

// The result of a step that was dropped without being evaluated must be in the cache all the same.
TEST(RepeatOfSteps, StepsNobodyEvaluatesAreInTheCache) {
  const Toy toy(7);
  KvCache cache = make_cache("affine:4"), expected = make_cache("affine:4");
  for (int i = 0; i < 10; ++i) {
    auto [out, again] = toy.step(cache, i);
    if (i < 3) out.eval();
    EXPECT_EQ(again, i > 1);
    toy.plain(expected, i);
  }
  EXPECT_EQ(toy.plain(cache, 30), toy.plain(expected, 30));
  const KvCache copy = cache.copy();
  EXPECT_EQ(body_numbers(copy.layer(0)), body_numbers(expected.layer(0)));
}

}  // namespace
}  // namespace tersor::cache
