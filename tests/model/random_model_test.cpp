// Models made from a shape alone: what the table says, that they are whole, finite and repeatable, and what is refused.
#include "model/error_of.h"
#include "model/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>

#include "model/shapes.h"
#include "model/tiny_model.h"

namespace tersor::model {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::tiny_config;

Config small_config() {
  Config c = tiny_config();
  c.intermediate = 128;
  c.layers = 24;  // deep enough that growth would show
  return c;
}

std::vector<float> logits_of(const Transformer& model, std::span<const int32_t> tokens) {
  auto cache = model.make_cache({});
  mx::array logits = model.forward(tokens, cache, false);
  logits.eval();
  return {logits.data<float>(), logits.data<float>() + logits.size()};
}

const std::vector<int32_t> kTokens{1, 5, 9, 2, 33, 63, 0, 7};

// Sums that config.json of each model implies, in parameters; the names of some models round them.
TEST(Shapes, HaveThePublishedNumberOfParameters) {
  const std::vector<std::pair<std::string, double>> published{{"smollm2-135m", 134.5e6}, {"smollm2-1.7b", 1711e6}, {"llama-3.2-1b", 1236e6},
                                                              {"llama-3.2-3b", 3213e6},  {"llama-3.1-8b", 8030e6}, {"qwen2.5-0.5b", 494e6},
                                                              {"qwen2.5-3b", 3086e6},    {"qwen2.5-7b", 7616e6},   {"qwen3-0.6b", 596e6},
                                                              {"qwen3-4b", 4022e6},      {"qwen3-8b", 8191e6},     {"mistral-7b", 7248e6}};
  ASSERT_EQ(published.size(), shape_names().size());
  for (const auto& [name, parameters] : published) {
    const double dense = static_cast<double>(weight_bytes(config_of_shape(name), WeightType::parse("bf16"))) / 2;
    EXPECT_NEAR(dense / parameters, 1, 0.001) << name;
  }
}

TEST(Shapes, UnknownNamesListWhatThereIs) {
  const std::string error = error_of([] { config_of_shape("llama-9"); });
  for (const auto& name : shape_names()) EXPECT_THAT(error, HasSubstr(name));
}

TEST(WeightTypes, ParseAndPrint) {
  EXPECT_EQ(WeightType::parse("affine:4").str(), "affine:4,group=64");
  EXPECT_EQ(WeightType::parse("affine:8,group=32").str(), "affine:8,group=32");
  for (const char* name : {"f16", "bf16", "f32", "mxfp4", "mxfp8"}) EXPECT_EQ(WeightType::parse(name).str(), name);
  EXPECT_EQ(WeightType::parse("affine:4").bytes(128, 64), 128u * 32 + 128 * 4);
  EXPECT_EQ(WeightType::parse("mxfp4").bytes(128, 64), 128u * 32 + 128 * 2);
  EXPECT_EQ(WeightType::parse("f32").bytes(128, 64), 128u * 64 * 4);
  for (const char* bad : {"", "int4", "affine", "affine:7", "affine:4,group=48", "turboquant:4", "f64", "full"})
    EXPECT_THAT(error_of([&] { WeightType::parse(bad); }), HasSubstr("affine")) << bad;
}

class RandomModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  static Config config() {
    Config c = small_config();
    c.family = std::get<0>(GetParam());
    c.qkv_bias = c.family == "qwen2", c.qk_norm = c.family == "qwen3", c.tied_head = c.family != "mistral";
    return c;
  }
  static WeightType type() { return WeightType::parse(std::get<1>(GetParam())); }
};

TEST_P(RandomModels, AreWholeFiniteAndOfTheStatedSize) {
  const Transformer model(random_model("tiny", config(), type(), 1), ops::Policy::forbid, ops::Precision::exact);
  EXPECT_EQ(model.weight_bytes(), weight_bytes(config(), type()));
  const auto logits = logits_of(model, kTokens);
  ASSERT_EQ(logits.size(), kTokens.size() * 64);
  double square = 0;
  for (const float x : logits) {
    ASSERT_TRUE(std::isfinite(x));
    square += static_cast<double>(x) * x;
  }
  const double deviation = std::sqrt(square / static_cast<double>(logits.size()));
  EXPECT_GT(deviation, 0.3);
  EXPECT_LT(deviation, 3);
}

TEST_P(RandomModels, AreTheSameForASeed) {
  const auto make = [](uint64_t seed) { return random_model("tiny", config(), type(), seed); };
  EXPECT_EQ(make(1).identity, make(1).identity);
  EXPECT_NE(make(1).identity, make(2).identity);
  const auto run = [&](uint64_t seed) { return logits_of(Transformer(make(seed), ops::Policy::automatic), kTokens); };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

// Packed while they are made or afterwards, the weights are the same.
TEST_P(RandomModels, PackAsTheyAreMade) {
  const auto run = [](std::optional<ops::Precision> pack) {
    return logits_of(Transformer(random_model("tiny", config(), type(), 5, pack), ops::Policy::automatic), kTokens);
  };
  EXPECT_EQ(run(ops::Precision::int16), run({}));
}

INSTANTIATE_TEST_SUITE_P(All, RandomModels,
                         ::testing::Combine(::testing::Values("llama", "mistral", "qwen2", "qwen3"),
                                            ::testing::Values("affine:4,group=32", "affine:3", "affine:8", "mxfp4", "mxfp8", "bf16", "f16",
                                                              "f32")),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(RandomLinear, HasVarianceOneOverItsWidth) {
  for (const char* type : {"affine:2,group=32", "affine:4", "affine:8,group=128", "mxfp4", "mxfp8", "bf16"}) {
    const ops::LinearWeight w = random_linear(512, 256, WeightType::parse(type), 1);
    const mx::array dense =
        w.bits ? mx::dequantize(w.weight, *w.scales, w.biases, w.group, w.bits, std::string(name_of(w.coding))) : w.weight;
    const mx::array x = mx::astype(dense, mx::float32);
    EXPECT_NEAR(mx::mean(x).item<float>() * 16, 0, 0.02) << type;
    EXPECT_NEAR(mx::var(x).item<float>() * 256, 1, 0.06) << type;
  }
}

TEST(RandomLinear, GroupsMustDivideRows) {
  EXPECT_THAT(error_of([] { random_linear(8, 48, WeightType::parse("mxfp4"), 1); }), HasSubstr("do not divide rows of 48"));
  EXPECT_THAT(error_of([] { random_linear(8, 576, WeightType::parse("affine:4,group=128"), 1); }), HasSubstr("do not divide rows of 576"));
}

TEST(RandomModel, HasNoTokenizer) {
  const Transformer model(random_model("tiny", small_config(), WeightType::parse("affine:4,group=32"), 1), ops::Policy::automatic);
  EXPECT_THAT(error_of([&] { model.tokenizer(); }), HasSubstr("no tokenizer"));
  EXPECT_THAT(error_of([&] { model.chat_format(); }), HasSubstr("no tokenizer"));
}

TEST(RandomModel, IsRefusedWhereItDoesNotFit) {
  Config c = config_of_shape("llama-3.1-8b");
  c.layers = 4000;
  const std::string error = error_of([&] { random_model("big", c, WeightType::parse("bf16"), 1); });
  EXPECT_THAT(error, HasSubstr("big: weights of bf16 take"));
  EXPECT_THAT(error, HasSubstr("nine tenths"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace tersor::model
