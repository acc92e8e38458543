// Small random models in memory.
#pragma once

#include <mlx/ops.h>
#include <mlx/random.h>

#include <cmath>
#include <string>

#include "tersor/model.h"

namespace tersor::model::testing {

inline Config tiny_config() {
  Config c;
  c.family = "llama";
  c.layers = 3;
  c.hidden = 64;
  c.intermediate = 96;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.rotary_dims = 32;
  c.vocab = 64;
  c.context = 128;
  c.tied_head = true;
  return c;
}

// Token i is the i-th character of this string.
inline const std::string kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

class TinyModel {
 public:
  explicit TinyModel(uint64_t seed) : key_(mx::random::key(seed)) {}

  ModelData make(const Config& config) {
    ModelData data;
    data.config = config;
    linear(data, "model.embed_tokens", config.vocab, config.hidden, false, std::sqrt(static_cast<float>(config.hidden)));
    norm(data, "model.norm", config.hidden);
    if (!config.tied_head) linear(data, "lm_head", config.vocab, config.hidden, false);
    for (int i = 0; i < config.layers; ++i) layer(data, "model.layers." + std::to_string(i) + ".");
    for (char c : kAlphabet) data.tokenizer.tokens.emplace_back(1, c);
    data.tokenizer.pretokenizer.push_back({});  // byte level
    data.identity = {{"family", config.family}, {"layers", std::to_string(config.layers)}};
    data.format = "memory";
    return data;
  }

 private:
  mx::array normal(mx::Shape shape) {
    const auto keys = mx::random::split(key_);
    key_ = keys.first;
    return mx::random::normal(shape, mx::float32, 0, 1, keys.second);
  }
  void linear(ModelData& data, const std::string& name, int out, int in, bool bias, float scale = 1.5f) {
    ops::LinearWeight weight{mx::multiply(normal({out, in}), mx::array(scale / std::sqrt(static_cast<float>(in)))), {}, {}, 0, 0, {}};
    weight.weight.eval();
    if (bias) weight.bias = mx::multiply(normal({out}), mx::array(0.3f));
    if (bias) weight.bias->eval();
    data.linears.emplace(name, weight);
  }
  void norm(ModelData& data, const std::string& name, int size) {
    mx::array weight = mx::add(mx::array(1.0f), mx::multiply(normal({size}), mx::array(0.2f)));
    weight.eval();
    data.vectors.emplace(name, weight);
  }
  void layer(ModelData& data, const std::string& prefix) {
    const Config& c = data.config;
    norm(data, prefix + "input_layernorm", c.hidden);
    norm(data, prefix + "post_attention_layernorm", c.hidden);
    if (c.qk_norm) norm(data, prefix + "self_attn.q_norm", c.head_dim);
    if (c.qk_norm) norm(data, prefix + "self_attn.k_norm", c.head_dim);
    linear(data, prefix + "self_attn.q_proj", c.heads * c.head_dim, c.hidden, c.qkv_bias);
    linear(data, prefix + "self_attn.k_proj", c.kv_heads * c.head_dim, c.hidden, c.qkv_bias);
    linear(data, prefix + "self_attn.v_proj", c.kv_heads * c.head_dim, c.hidden, c.qkv_bias);
    linear(data, prefix + "self_attn.o_proj", c.hidden, c.heads * c.head_dim, c.o_bias);
    linear(data, prefix + "mlp.gate_proj", c.intermediate, c.hidden, c.mlp_bias);
    linear(data, prefix + "mlp.up_proj", c.intermediate, c.hidden, c.mlp_bias);
    linear(data, prefix + "mlp.down_proj", c.hidden, c.intermediate, c.mlp_bias);
  }

  mx::array key_;
};

inline ModelData tiny_model(const Config& config, uint64_t seed = 1) { return TinyModel(seed).make(config); }

}  // namespace tersor::model::testing
