// Whole models of random weights on MLX's GPU backend against the same model on the CPU, and greedy decoding that runs ahead.
#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>

#include "model/random_model.h"
#include "model/shapes.h"

namespace tersor::model {
namespace {

struct Case {
  const char *weights, *kv;
  bool qk_norm, bias;
  double tolerance;  // of logits, relative
};

// Of keys and values, or of both.
cache::KvSpec setting(const std::string& kv) {
  const size_t slash = kv.find('/');
  return slash == std::string::npos ? cache::KvSpec::parse(kv) : cache::KvSpec::parse(kv.substr(0, slash), kv.substr(slash + 1));
}

Config small(const Case& c) {
  Config config = config_of_shape("smollm2-135m");
  config.layers = 4, config.vocab = 1000, config.context = 2048;
  config.qk_norm = c.qk_norm, config.qkv_bias = c.bias;
  return config;
}

std::vector<float> logits_on(mx::Device device, const Case& c, std::span<const int32_t> tokens) {
  mx::set_default_device(device);
  const Transformer model(random_model("small", small(c), WeightType::parse(c.weights), 7), ops::Policy::automatic);
  if (device == mx::Device::gpu) EXPECT_TRUE(model.runs_ahead());
  auto cache = model.make_cache(setting(c.kv));
  std::vector<float> all;
  const auto add = [&](std::span<const int32_t> part) {
    const mx::array rows = mx::contiguous(model.forward(part, cache, false));
    mx::eval(rows);
    all.insert(all.end(), rows.data<float>(), rows.data<float>() + rows.size());
  };
  add(tokens.first(70)), add(tokens.subspan(70, 1)), add(tokens.subspan(71, 4)), add(tokens.subspan(75));  // chunks, steps, verification
  mx::set_default_device(mx::Device::gpu);
  return all;
}

std::vector<int32_t> some_tokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 7919 + 13) % 1000);
  return tokens;
}

TEST(ModelGpu, LogitsAreThoseOfTheCpu) {
  for (const Case& c : {Case{"f16", "full", false, false, 6e-3}, Case{"affine:4,group=64", "full", false, true, 3e-2},
                        Case{"affine:8,group=32", "full", true, false, 3e-2}, Case{"bf16", "full", true, true, 3e-2},
                        Case{"affine:4,group=32", "turboquant:4", false, false, 0.25},
                        Case{"affine:4,group=32", "turboquant:6,centre=256,window=64,sinks=4/turboquant:4", false, false, 0.1},
                        Case{"f16", "turboquant:6,centre=8/turboquant:6", true, true, 0.1}}) {
    SCOPED_TRACE(std::string(c.weights) + " " + c.kv);
    const auto tokens = some_tokens(95);
    const auto cpu = logits_on(mx::Device::cpu, c, tokens), gpu = logits_on(mx::Device::gpu, c, tokens);
    ASSERT_EQ(cpu.size(), gpu.size());
    double error = 0, sum = 0;
    for (size_t i = 0; i < cpu.size(); ++i) error += std::pow(cpu[i] - gpu[i], 2), sum += std::pow(cpu[i], 2);
    EXPECT_LE(std::sqrt(error / sum), c.tolerance);
  }
}

// Ids that stay on the device, one step ahead, against ids that the host picks from logits.
TEST(ModelGpu, NextTokenIsTheLikeliest) {
  for (const Case& c : {Case{"affine:4,group=64", "turboquant:4", false, false, 0}, Case{"affine:4,group=32", "full", true, false, 0},
                        Case{"bf16", "affine:4,window=40,sinks=4", false, false, 0},
                        Case{"affine:4,group=64", "turboquant:6,centre=256,window=64,sinks=4/turboquant:4", true, false, 0}}) {
    SCOPED_TRACE(std::string(c.weights) + " " + c.kv);
    const Transformer model(random_model("small", small(c), WeightType::parse(c.weights), 8), ops::Policy::automatic);
    ASSERT_TRUE(model.runs_ahead());
    auto ahead = model.make_cache(setting(c.kv)), waiting = model.make_cache(setting(c.kv));
    const auto prompt = some_tokens(100);
    const mx::array first = model.prefill(prompt, ahead);
    int32_t token = mx::argmax(model.prefill(prompt, waiting)).item<uint32_t>();
    mx::array next = ops::argmax(first, 1000);
    mx::async_eval(next);
    for (int i = 0; i < 300; ++i) {  // over growing buffers
      const mx::array after = model.next_token(next, ahead, 1000);
      mx::async_eval(after);
      ASSERT_EQ(next.item<int32_t>(), token) << i;
      const mx::array logits = model.forward({&token, 1}, waiting);
      token = static_cast<int32_t>(mx::argmax(logits).item<uint32_t>());
      next = after;
    }
    EXPECT_EQ(ahead.tokens(), waiting.tokens());
  }
}

TEST(ModelGpu, ThousandsOfStepsTakeNoMoreMemory) {
  for (const char* kv : {"turboquant:4", "turboquant:6,centre=256,window=64,sinks=4/turboquant:4"}) {
    SCOPED_TRACE(kv);
    const Case c{"affine:4,group=64", kv, false, false, 0};
    Config config = small(c);
    config.context = 12000;
    const Transformer model(random_model("small", config, WeightType::parse(c.weights), 9), ops::Policy::automatic);
    auto cache = model.make_cache(setting(c.kv));
    cache.reserve(11000);
    mx::array token({3}, {1}, mx::int32);
    size_t early = 0;
    for (int i = 0; i < 10000; ++i) {
      const mx::array next = model.next_token(token, cache, 1000);
      mx::async_eval(next);
      ASSERT_GE(token.item<int32_t>(), 0);
      token = next;
      if (i == 500) early = mx::get_active_memory();
    }
    mx::eval(token);
    EXPECT_LE(mx::get_active_memory(), early + (1 << 20));
  }
}

}  // namespace
}  // namespace tersor::model
