#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/tiny_model.h"

namespace tersor::model {
namespace {

using testing::tiny_config;
using testing::tiny_model;

const std::vector<int32_t> kPrompt{5, 17, 42, 8, 8, 30};

std::string text_of(std::span<const int32_t> tokens) {
  std::string text;
  for (int32_t t : tokens) text += testing::kAlphabet[static_cast<size_t>(t)];
  return text;
}

class Generate : public ::testing::Test {
 protected:
  Generation run(const GenerateOptions& options, std::span<const int32_t> prompt = kPrompt) {
    cache.emplace(model.make_cache({}, Dtype::f32));
    return generate(model, *cache, prompt, options);
  }
  static GenerateOptions tokens(int count) {
    GenerateOptions options;
    options.max_tokens = count;
    return options;
  }

  Transformer model{tiny_model(tiny_config()), ops::Policy::automatic};
  std::optional<cache::KvCache> cache;
};

TEST_F(Generate, GreedyFollowsTheHighestLogit) {
  const Generation g = run(tokens(12));
  EXPECT_EQ(g.stop_reason, "length");
  EXPECT_EQ(g.prompt_tokens, 6);
  ASSERT_EQ(g.tokens.size(), 12u);
  EXPECT_EQ(g.text, text_of(g.tokens));
  EXPECT_GT(g.prefill_tok_s(), 0);
  EXPECT_GT(g.decode_tok_s(), 0);

  auto other = model.make_cache({}, Dtype::f32);
  std::vector<int32_t> all = kPrompt;
  for (int32_t token : g.tokens) {
    auto fresh = model.make_cache({}, Dtype::f32);
    mx::array logits = model.forward(all, fresh);
    logits.eval();
    const float* row = logits.data<float>();
    EXPECT_EQ(token, std::max_element(row, row + 64) - row) << "after " << all.size() << " tokens";
    all.push_back(token);
  }
}

TEST_F(Generate, TheCacheHoldsPromptAndReplySoThatTheNextCallFollowsOn) {
  const Generation whole = run(tokens(20));
  const Generation head = run(tokens(9));
  EXPECT_EQ(cache->tokens(), 6 + 9);
  // One more token by hand, then the rest: the same text as in one go.
  const std::vector<int32_t> next{whole.tokens[9]};
  const Generation tail = generate(model, *cache, next, tokens(10));
  std::vector<int32_t> joined = head.tokens;
  joined.push_back(next[0]);
  joined.insert(joined.end(), tail.tokens.begin(), tail.tokens.end());
  EXPECT_EQ(joined, whole.tokens);
}

TEST_F(Generate, StopStringsCutTheText) {
  const std::string whole = run(tokens(20)).text;
  GenerateOptions options = tokens(20);
  options.stop = {"no such text", whole.substr(7, 3)};
  const size_t at = whole.find(options.stop[1]);
  std::string streamed;
  options.on_text = [&](std::string_view piece) { streamed += piece; };
  const Generation g = run(options);
  EXPECT_EQ(g.stop_reason, "stop");
  EXPECT_EQ(g.text, whole.substr(0, at));
  EXPECT_EQ(streamed, g.text);
  EXPECT_EQ(g.tokens.size(), at + 3) << "the tokens include those of the stop string";
  EXPECT_EQ(cache->tokens(), static_cast<int64_t>(6 + g.tokens.size()));
}

TEST_F(Generate, AStopStringThatNeverCompletesLosesNothing) {
  const std::string whole = run(tokens(20)).text;
  GenerateOptions options = tokens(20);
  options.stop = {whole.substr(18) + "###"};
  std::string streamed;
  options.on_text = [&](std::string_view piece) { streamed += piece; };
  EXPECT_EQ(run(options).text, whole);
  EXPECT_EQ(streamed, whole);
}

TEST_F(Generate, EndTokensEndTheReply) {
  const Generation whole = run(tokens(20));
  const int32_t end = whole.tokens[6];
  const auto at = std::find(whole.tokens.begin(), whole.tokens.end(), end) - whole.tokens.begin();
  ModelData data = tiny_model(tiny_config());
  data.tokenizer.end_tokens = {end};
  const Transformer ending(std::move(data), ops::Policy::automatic);
  auto fresh = ending.make_cache({}, Dtype::f32);
  const Generation g = generate(ending, fresh, kPrompt, tokens(20));
  EXPECT_EQ(g.stop_reason, "end");
  EXPECT_EQ(g.tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + at));
  EXPECT_EQ(fresh.tokens(), 6 + at);

  auto again = ending.make_cache({}, Dtype::f32);
  GenerateOptions options = tokens(20);
  options.ignore_end = true;
  EXPECT_EQ(generate(ending, again, kPrompt, options).tokens, whole.tokens);
}

TEST_F(Generate, StopsWhenTheContextIsFull) {
  const Generation g = run(tokens(1000));
  EXPECT_EQ(g.stop_reason, "context");
  EXPECT_EQ(cache->tokens(), 128);
  EXPECT_EQ(g.tokens.size(), 128u - 6 + 1) << "the last token was picked, but found no room";
}

TEST_F(Generate, SamplingDependsOnTheSeedAlone) {
  GenerateOptions options = tokens(30);
  options.sampling.temperature = 1.5f;
  options.sampling.seed = 11;
  const auto first = run(options).tokens;
  EXPECT_EQ(run(options).tokens, first);
  options.sampling.seed = 12;
  EXPECT_NE(run(options).tokens, first);
}

TEST_F(Generate, ReportsPrefillInChunks) {
  GenerateOptions options = tokens(1);
  options.prefill_chunk = 4;
  std::vector<int64_t> seen;
  options.on_prefill = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 6);
    seen.push_back(done);
  };
  run(options);
  EXPECT_EQ(seen, (std::vector<int64_t>{4, 6}));
}

TEST_F(Generate, RefusesBadOptionsBeforeThePromptRuns) {
  cache.emplace(model.make_cache({}));
  const auto refused = [&](auto&& change) {
    GenerateOptions options;
    change(options);
    EXPECT_THROW(generate(model, *cache, kPrompt, options), Error);
    EXPECT_EQ(cache->tokens(), 0);
  };
  refused([](auto& o) { o.max_tokens = 0; });
  refused([](auto& o) { o.prefill_chunk = 0; });
  refused([](auto& o) { o.stop = {""}; });
  refused([](auto& o) { o.sampling.temperature = -1; });
  EXPECT_THROW(generate(model, *cache, {}, {}), Error);
}

TEST_F(Generate, ACompressedCacheStreamsTheSameWay) {
  auto compressed = model.make_cache(cache::KvSpec::parse("affine:8,group=32"));
  std::string streamed;
  GenerateOptions options = tokens(10);
  options.on_text = [&](std::string_view piece) { streamed += piece; };
  const Generation g = generate(model, compressed, kPrompt, options);
  EXPECT_EQ(streamed, g.text);
  EXPECT_EQ(g.tokens.size(), 10u);
  EXPECT_EQ(compressed.tokens(), 16);
}

class Evaluate : public ::testing::Test {
 protected:
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> ids;
    for (int i = 0; i < 90; ++i) ids.push_back((i * i * 7 + 3 * i) % 64);
    return ids;
  }
  Transformer model{tiny_model(tiny_config()), ops::Policy::automatic};
};

TEST_F(Evaluate, FullPrecisionIsAtDistanceZeroAndCodecsAreNot) {
  const std::vector<cache::KvSpec> specs{cache::KvSpec::parse("full"), cache::KvSpec::parse("affine:8,group=32"),
                                         cache::KvSpec::parse("affine:4,group=32")};
  std::vector<int64_t> seen;
  const auto results = evaluate(model, tokens(), specs, 32, Dtype::f16, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 90);
    seen.push_back(done);
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{32, 64, 90}));
  ASSERT_EQ(results.size(), 3u);
  for (const auto& r : results) {
    EXPECT_EQ(r.fidelity.positions, 90);
    EXPECT_EQ(r.tokens, 90);
    EXPECT_EQ(r.layers.size(), 3u);
    EXPECT_EQ(r.fidelity.perplexity_full, results[0].fidelity.perplexity_full);
  }
  EXPECT_EQ(results[0].fidelity.kl_max, 0);
  EXPECT_EQ(results[0].fidelity.logit_error_max, 0);
  EXPECT_TRUE(results[0].fidelity.strict_passed());
  EXPECT_GT(results[1].fidelity.kl_mean, 0);
  EXPECT_GT(results[2].fidelity.kl_mean, results[1].fidelity.kl_mean);
  EXPECT_LT(results[2].kv_bytes, results[1].kv_bytes);
  EXPECT_LT(results[1].kv_bytes, results[1].kv_bytes_full);
  EXPECT_FALSE(results[2].fidelity.strict_passed());
}

TEST_F(Evaluate, PerplexityIsThatOfTheLogits) {
  const auto ids = tokens();
  const std::vector<cache::KvSpec> specs{cache::KvSpec::parse("full")};
  const auto result = evaluate(model, ids, specs, 7, Dtype::f32).front();
  auto cache = model.make_cache({}, Dtype::f32);
  mx::array logits = model.forward(ids, cache, false);
  logits.eval();
  double nll = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const float* row = logits.data<float>() + 64 * i;
    double sum = 0;
    for (int j = 0; j < 64; ++j) sum += std::exp(static_cast<double>(row[j]));
    nll += std::log(sum) - row[ids[i + 1]];
  }
  const double expected = std::exp(nll / 89);
  EXPECT_NEAR(result.fidelity.perplexity / expected, 1, 1e-4);
  EXPECT_EQ(result.fidelity.perplexity, result.fidelity.perplexity_full);
}

TEST_F(Evaluate, RefusesWhatCannotBeEvaluated) {
  const std::vector<cache::KvSpec> specs{cache::KvSpec::parse("full")};
  EXPECT_THROW(evaluate(model, std::vector<int32_t>{1}, specs), Error);
  EXPECT_THROW(evaluate(model, std::vector<int32_t>(129, 1), specs), Error);
  EXPECT_THROW(evaluate(model, tokens(), specs, 0), Error);
  EXPECT_THROW(evaluate(model, std::vector<int32_t>{1, 99}, specs), Error);
}

}  // namespace
}  // namespace tersor::model
