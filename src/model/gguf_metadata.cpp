#include "model/gguf_metadata.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/sniff.h"
#include "model/gguf_types.h"
#include "model/weight_plan.h"

namespace tersor::model::gguf {
namespace {

constexpr int kDefaultContext = 2048;
constexpr float kDefaultRopeBase = 10000.0f;
constexpr std::string_view kDefaultPretokenizer = "gpt-2";

// Typed look-ups of "ARCHITECTURE.name".
class Keys {
 public:
  Keys(const File& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

  std::string key(const char* name) const { return architecture_ + "." + name; }

  /// A size: 1 to 2^31 - 1.
  int size(const char* name, std::optional<int> fallback = {}) const {
    const auto value = file_.integer(key(name));
    if (!value && fallback) return *fallback;
    if (!value) missing(name);
    if (*value < 1 || *value > INT32_MAX)
      file_.fail("metadata key " + key(name) + " is " + std::to_string(*value) + "; a size from 1 to 2^31 - 1 is needed");
    return static_cast<int>(*value);
  }

  /// Zero or absent: 0.
  int optional_size(const char* name) const {
    const auto value = file_.integer(key(name));
    return value && *value != 0 ? size(name) : 0;
  }

  float number(const char* name, std::optional<float> fallback = {}) const {
    const auto value = file_.number(key(name));
    if (!value && fallback) return *fallback;
    if (!value) missing(name);
    return static_cast<float>(*value);
  }

 private:
  [[noreturn]] void missing(const char* name) const {
    file_.fail("metadata key " + key(name) + " is missing, but the model cannot be built without it");
  }

  const File& file_;
  std::string architecture_;
};

void check_supported(const File& file, const std::string& architecture, const Keys& keys) {
  if (const auto parts = file.integer("split.count"); parts && *parts > 1)
    file.fail("is one part of a model split into " + std::to_string(*parts) +
              " files (split.count), which is not supported; merge them with llama.cpp's gguf-split --merge");
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3")
    file.fail("architecture \"" + printable(architecture) + "\" is not supported; supported: llama, qwen2, qwen3");
  if (keys.optional_size("expert_count")) file.fail("mixture-of-experts models (" + keys.key("expert_count") + ") are not supported");
  if (const auto type = file.string("general.type"); type && *type != "model")
    file.fail("is of type \"" + printable(*type) + "\" (general.type), not a model");
  for (const char* name : {"attention.logit_softcapping", "logit_scale", "residual_scale", "embedding_scale", "attention.scale"})
    if (const float value = keys.number(name, 0.0f); value != 0 && value != 1)
      file.fail("metadata key " + keys.key(name) + " is not supported");
  if (const auto causal = file.boolean(keys.key("attention.causal")); causal && !*causal)
    file.fail("is a model without causal attention (" + keys.key("attention.causal") + "), which is not supported");
}

void read_rope_scaling(const File& file, const Keys& keys, Config& config) {
  const auto type = file.string(keys.key("rope.scaling.type")).value_or(file.value(keys.key("rope.scale_linear")) ? "linear" : "none");
  if (type == "linear")
    config.linear_rope_factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0f));
  else if (type != "none" && type != "")
    file.fail("rope scaling \"" + printable(type) + "\" is not supported; supported: none, linear, and rope_freqs.weight");
}

// Divisors of the rotary frequencies, as llama.cpp's converter writes them for Llama 3.
void read_rope_factors(const File& file, Config& config) {
  const Tensor* tensor = file.tensor("rope_freqs.weight");
  if (!tensor) return;
  check_shape(file.path().string(), "rope_freqs.weight", tensor->shape, {static_cast<uint64_t>(config.rotary_dims / 2)});
  if (tensor->type != 0) file.fail("tensor rope_freqs.weight is " + type_name(tensor->type) + "; F32 is needed");
  config.rope_freq_factors.resize(static_cast<size_t>(config.rotary_dims / 2));
  std::memcpy(config.rope_freq_factors.data(), tensor->data.data(), tensor->data.size());
  for (const float factor : config.rope_freq_factors)
    if (!(factor > 0) || !std::isfinite(factor))
      file.fail("tensor rope_freqs.weight holds a factor that is not positive; the file is damaged");
}

void read_heads(const File& file, const Keys& keys, Config& c) {
  c.heads = keys.size("attention.head_count");
  c.kv_heads = keys.size("attention.head_count_kv", c.heads);
  if (!file.value(keys.key("attention.key_length")) && c.hidden % c.heads)
    file.fail(keys.key("embedding_length") + " " + std::to_string(c.hidden) + " is not a multiple of " + keys.key("attention.head_count") +
              " " + std::to_string(c.heads));
  c.head_dim = keys.size("attention.key_length", std::max(1, c.hidden / c.heads));
  if (const int values = keys.size("attention.value_length", c.head_dim); values != c.head_dim)
    file.fail("keys of size " + std::to_string(c.head_dim) + " with values of size " + std::to_string(values) + " are not supported");
  c.rotary_dims = keys.size("rope.dimension_count", c.head_dim);
}

// Without tokens the size is the embedding's, so that what is reported is the tokenizer and not the size.
int read_vocab(const File& file, const Keys& keys) {
  const uint64_t tokens = file.count("tokenizer.ggml.tokens");
  if (tokens > INT32_MAX) file.fail("tokenizer.ggml.tokens names " + std::to_string(tokens) + " tokens");
  if (tokens) {
    if (const int named = keys.optional_size("vocab_size"); named && static_cast<uint64_t>(named) < tokens)
      file.fail(keys.key("vocab_size") + " is " + std::to_string(named) + ", but there are " + std::to_string(tokens) + " tokens");
  }
  return keys.size("vocab_size", tokens ? std::optional<int>(static_cast<int>(tokens)) : std::nullopt);
}

std::vector<std::string> read_strings(const File& file, const char* key) {
  std::vector<std::string> result;
  result.reserve(file.count(key));
  file.strings(key, [&](uint64_t, std::string_view text) { result.emplace_back(text); });
  return result;
}

std::vector<int32_t> read_types(const File& file) {
  std::vector<int32_t> result;
  file.integers("tokenizer.ggml.token_type", [&](uint64_t id, int64_t type) {
    if (type != static_cast<int32_t>(type))
      file.fail("tokenizer.ggml.token_type[" + std::to_string(id) + "] is " + std::to_string(type) + ", which is no type");
    result.push_back(static_cast<int32_t>(type));
  });
  return result;
}

}  // namespace

Config read_config(const File& file) {
  const auto architecture = file.string("general.architecture");
  if (!architecture) file.fail("metadata key general.architecture is missing: it is not known what model this is");
  const Keys keys(file, std::string(*architecture));
  check_supported(file, std::string(*architecture), keys);
  Config c;
  c.family = *architecture;
  c.layers = keys.size("block_count");
  c.hidden = keys.size("embedding_length");
  c.intermediate = keys.size("feed_forward_length");
  c.context = keys.size("context_length", kDefaultContext);
  read_heads(file, keys, c);
  c.vocab = read_vocab(file, keys);
  c.norm_eps = keys.number("attention.layer_norm_rms_epsilon");
  c.rope_theta = keys.number("rope.freq_base", kDefaultRopeBase);
  c.sliding_window = keys.optional_size("attention.sliding_window");
  c.tied_head = !file.tensor("output.weight");
  c.qk_norm = c.family == "qwen3";
  c.qkv_bias = file.tensor("blk.0.attn_q.bias") != nullptr;
  c.o_bias = file.tensor("blk.0.attn_output.bias") != nullptr;
  c.mlp_bias = file.tensor("blk.0.ffn_gate.bias") != nullptr;
  read_rope_scaling(file, keys, c);
  check_config(c, file.tensors().size(), file.path().string());
  read_rope_factors(file, c);
  return c;
}

text::TokenizerData read_tokenizer(const File& file) {
  if (!file.value("tokenizer.ggml.model")) file.fail("metadata key tokenizer.ggml.model is missing: the file has no tokenizer");
  const uint64_t tokens = file.count("tokenizer.ggml.tokens"), merges = file.count("tokenizer.ggml.merges");
  // Real vocabularies have at most about twice as many merges as tokens; the bound keeps a damaged file from filling memory.
  if (merges > 8 * tokens)
    file.fail("tokenizer.ggml.merges names " + std::to_string(merges) + " merges for " + std::to_string(tokens) + " tokens");
  text::GgufTokenizer t;
  t.model = *file.string("tokenizer.ggml.model");
  t.pre = file.string("tokenizer.ggml.pre").value_or(kDefaultPretokenizer);
  t.tokens = read_strings(file, "tokenizer.ggml.tokens");
  t.merges = read_strings(file, "tokenizer.ggml.merges");
  t.token_type = read_types(file);
  t.bos_token_id = file.integer("tokenizer.ggml.bos_token_id");
  t.eos_token_id = file.integer("tokenizer.ggml.eos_token_id");
  t.eot_token_id = file.integer("tokenizer.ggml.eot_token_id");
  t.add_bos_token = file.boolean("tokenizer.ggml.add_bos_token");
  t.chat_template = file.string("tokenizer.chat_template").value_or("");
  auto result = text::tokenizer_from_gguf(std::move(t), file.path().string());
  if (const auto eom = file.integer("tokenizer.ggml.eom_token_id")) {
    if (*eom < 0 || static_cast<uint64_t>(*eom) >= tokens)
      file.fail("tokenizer.ggml.eom_token_id is " + std::to_string(*eom) + ", outside the vocabulary of " + std::to_string(tokens));
    add_end_tokens(result, {static_cast<int32_t>(*eom)});
  }
  return result;
}

}  // namespace tersor::model::gguf
