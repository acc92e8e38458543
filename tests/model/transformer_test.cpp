#include <gtest/gtest.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <ostream>
#include <random>

#include "model/error_of.h"
#include "model/reference_transformer.h"
#include "model/rope_frequencies.h"
#include "model/tiny_model.h"

namespace tersor::model {
namespace {

using testing::error_of;
using testing::tiny_config;
using testing::tiny_model;

std::vector<int32_t> some_tokens(size_t count, uint32_t seed = 3) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (auto& t : tokens) t = static_cast<int32_t>(random() % 64);
  return tokens;
}

std::vector<float> numbers(mx::array logits) {
  logits.eval();
  return {logits.data<float>(), logits.data<float>() + logits.size()};
}

std::vector<float> all_logits(const Transformer& model, std::span<const int32_t> tokens, size_t chunk, Dtype dtype = Dtype::f32) {
  auto cache = model.make_cache({}, dtype);
  std::vector<float> rows;
  for (size_t done = 0; done < tokens.size(); done += chunk) {
    const auto part = numbers(model.forward(tokens.subspan(done, std::min(chunk, tokens.size() - done)), cache, false));
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

struct Variant {
  const char* name;
  void (*change)(Config&);
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class Variants : public ::testing::TestWithParam<Variant> {
 protected:
  Config config() const {
    Config c = tiny_config();
    GetParam().change(c);
    return c;
  }
};

TEST_P(Variants, AgreesWithPlainLoopsInDouble) {
  const ModelData data = tiny_model(config());
  const auto tokens = some_tokens(40);
  const auto expected = testing::ReferenceTransformer(data).logits(tokens);
  const auto got = all_logits(Transformer(data, ops::Policy::automatic), tokens, tokens.size());
  double largest = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(got[i] - expected[i / 64][i % 64]));
    size = std::max(size, std::abs(expected[i / 64][i % 64]));
  }
  EXPECT_GT(size, 1) << "logits near zero would prove nothing";
  EXPECT_LT(largest, 2e-5 * size);
}

TEST_P(Variants, ChunksGiveTheSameLogits) {
  const Transformer model(tiny_model(config()), ops::Policy::automatic);
  const auto tokens = some_tokens(100);
  const auto whole = all_logits(model, tokens, tokens.size());
  for (size_t chunk : {1, 7, 64}) EXPECT_LT(largest_difference(all_logits(model, tokens, chunk), whole), 2e-4) << "chunks of " << chunk;
}

TEST_P(Variants, ComposedOperationsAgreeWithKernels) {
  const auto tokens = some_tokens(50);
  const auto fast = all_logits(Transformer(tiny_model(config()), ops::Policy::automatic), tokens, 16);
  const auto composed = all_logits(Transformer(tiny_model(config()), ops::Policy::forbid), tokens, 16);
  EXPECT_LT(largest_difference(fast, composed), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, Variants,
                         ::testing::Values(Variant{"plain", [](Config&) {}}, Variant{"untied", [](Config& c) { c.tied_head = false; }},
                                           Variant{"qkv_bias", [](Config& c) { c.qkv_bias = true; }},
                                           Variant{"all_biases", [](Config& c) { c.qkv_bias = c.o_bias = c.mlp_bias = true; }},
                                           Variant{"qk_norm", [](Config& c) { c.qk_norm = true; }},
                                           Variant{"one_kv_head", [](Config& c) { c.kv_heads = 1; }},
                                           Variant{"partial_rotary", [](Config& c) { c.rotary_dims = 16; }},
                                           Variant{"gelu", [](Config& c) { c.activation = Activation::gelu; }},
                                           Variant{"gelu_tanh", [](Config& c) { c.activation = Activation::gelu_tanh; }},
                                           Variant{"sliding_window", [](Config& c) { c.sliding_window = 9; }},
                                           Variant{"llama3_rope",
                                                   [](Config& c) {
                                                     c.llama3_scaling = {8, 1, 4, 32};
                                                   }}),
                         [](const auto& info) { return info.param.name; });

TEST(Transformer, TheLastRowAloneIsTheLastOfAll) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  const auto tokens = some_tokens(33);
  const auto all = all_logits(model, tokens, tokens.size());
  const std::span<const float> last(all.data() + all.size() - 64, 64);
  auto cache = model.make_cache({}, Dtype::f32);
  EXPECT_LT(largest_difference(numbers(model.forward(tokens, cache)), last), 1e-4);
  for (int chunk : {1, 10, 33, 512}) {
    auto other = model.make_cache({}, Dtype::f32);
    std::vector<int64_t> steps;
    EXPECT_LT(largest_difference(numbers(model.prefill(tokens, other, chunk, [&](int64_t done) { steps.push_back(done); })), last), 1e-4);
    EXPECT_EQ(steps.size(), (33 + static_cast<size_t>(chunk) - 1) / static_cast<size_t>(chunk));
    EXPECT_EQ(steps.back(), 33);
    EXPECT_EQ(other.tokens(), 33);
  }
}

TEST(Transformer, RefusesTokensOutsideTheVocabularyBeforeItTouchesTheCache) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  auto cache = model.make_cache({});
  for (int32_t bad : {-1, 64, 1 << 30}) {
    const std::vector<int32_t> tokens{1, 2, bad};
    EXPECT_NE(error_of([&] { model.forward(tokens, cache); }).find("place 2"), std::string::npos);
    EXPECT_THROW(model.prefill(tokens, cache, 1), Error);
  }
  EXPECT_THROW(model.forward({}, cache), Error);
  EXPECT_THROW(model.prefill(some_tokens(3), cache, 0), Error);
  EXPECT_EQ(cache.tokens(), 0);
}

TEST(Transformer, RefusesMoreTokensThanTheContextHolds) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  auto cache = model.make_cache({});
  EXPECT_NE(error_of([&] { model.prefill(some_tokens(129), cache); }).find("context of 128"), std::string::npos);
  EXPECT_EQ(cache.tokens(), 0);
  model.prefill(some_tokens(128), cache);
  EXPECT_THROW(model.forward(some_tokens(1), cache), Error);
  EXPECT_EQ(cache.tokens(), 128);
}

TEST(Transformer, RefusesACacheOfAnotherModel) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  Config other = tiny_config();
  other.layers = 2;
  auto fewer = Transformer(tiny_model(other), ops::Policy::automatic).make_cache({});
  other = tiny_config();
  other.head_dim = other.rotary_dims = 64;
  auto wider = Transformer(tiny_model(other), ops::Policy::automatic).make_cache({});
  EXPECT_THROW(model.forward(some_tokens(2), fewer), Error);
  EXPECT_THROW(model.forward(some_tokens(2), wider), Error);
}

TEST(Transformer, NoticesALayerThatLostStep) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  auto cache = model.make_cache({});
  model.prefill(some_tokens(5), cache);
  ASSERT_EQ(cache.layer(1).trim(1), 1);
  EXPECT_NE(error_of([&] { model.forward(some_tokens(2), cache); }).find("layer 1"), std::string::npos);
}

TEST(Transformer, NamesTheTensorThatIsMissingOrDoesNotFit) {
  const auto broken = [](auto&& change) {
    ModelData data = tiny_model(tiny_config());
    change(data);
    return error_of([&] { Transformer model(std::move(data), ops::Policy::automatic); });
  };
  const std::string q = "model.layers.1.self_attn.q_proj";
  EXPECT_NE(broken([&](ModelData& d) { d.linears.erase(q); }).find(q), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.linears.at(q).weight = mx::zeros({64, 64}); }).find(q), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.vectors.erase("model.norm"); }).find("model.norm"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.vectors.at("model.norm") = mx::zeros({3}); }).find("model.norm"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.config.qkv_bias = true; }).find("bias"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.config.tied_head = false; }).find("lm_head"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.config.kv_heads = 3; }).find("heads"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.config.layers = 0; }).find("layers"), std::string::npos);
  EXPECT_NE(broken([&](ModelData& d) { d.config.rotary_dims = 34; }).find("rotary"), std::string::npos);
}

TEST(Transformer, SaysWhatRuns) {
  const Transformer model(tiny_model(tiny_config()), ops::Policy::automatic);
  const auto choices = model.choices();
  for (const char* op : {"linear", "rope"})
    EXPECT_TRUE(std::any_of(choices.begin(), choices.end(), [&](const auto& c) { return c.op == op && !c.kernel.empty(); })) << op;
  // The uncompressed cache is what others are compared with: it must not be slow for want of a kernel.
  for (const char* spec : {"full", "affine:4,group=32", "turboquant:4"})
    for (const auto& choice : model.make_cache(cache::KvSpec::parse(spec)).choices())
      EXPECT_TRUE(choice.fast) << choice.op << " of " << spec << ": " << choice.reason;
  for (const auto& choice : Transformer(tiny_model(tiny_config()), ops::Policy::forbid).choices()) EXPECT_FALSE(choice.fast) << choice.op;
  const Transformer exact(tiny_model(tiny_config()), ops::Policy::automatic, ops::Precision::exact);
  for (const auto& choice : exact.make_cache(cache::KvSpec::parse("turboquant:4")).choices())
    EXPECT_EQ(choice.precision, ops::Precision::exact) << choice.kernel;
}

TEST(Transformer, CountsSharedWeightsOnce) {
  const auto bytes = [](bool tied) {
    Config c = tiny_config();
    c.tied_head = tied;
    return Transformer(tiny_model(c), ops::Policy::automatic).weight_bytes();
  };
  EXPECT_EQ(bytes(false) - bytes(true), 64u * 64 * 4);
}

TEST(RopeFrequencies, PlainLinearAndDivided) {
  Config c = tiny_config();
  c.rotary_dims = 4;
  EXPECT_EQ(rope_inverse_frequencies(c), (std::vector<float>{1, 0.01f}));
  c.linear_rope_factor = 4;
  EXPECT_EQ(rope_inverse_frequencies(c), (std::vector<float>{0.25f, 0.0025f}));
  c.linear_rope_factor = 1;
  c.rope_freq_factors = {1, 8};
  EXPECT_EQ(rope_inverse_frequencies(c), (std::vector<float>{1, 0.00125f}));
  c.rope_freq_factors = {1};
  EXPECT_THROW(rope_inverse_frequencies(c), Error);
}

TEST(RopeFrequencies, Llama3LeavesShortWavesAndSlowsLongOnes) {
  Config plain = tiny_config(), scaled = plain;
  scaled.llama3_scaling = {8, 1, 4, 64};
  const auto before = rope_inverse_frequencies(plain), after = rope_inverse_frequencies(scaled);
  bool blended = false;
  for (size_t i = 0; i < before.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / before[i];
    if (wavelength < 16)
      EXPECT_EQ(after[i], before[i]);
    else if (wavelength > 64)
      EXPECT_FLOAT_EQ(after[i], before[i] / 8);
    else {
      blended = true;
      EXPECT_LT(after[i], before[i]);
      EXPECT_GT(after[i], before[i] / 8);
    }
  }
  EXPECT_TRUE(blended);
  EXPECT_LT(after.back() * 7.9f, before.back());
}

}  // namespace
}  // namespace tersor::model
