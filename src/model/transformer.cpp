#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>

#include "model/layer_weights.h"
#include "model/rope_frequencies.h"
#include "tersor/model.h"

namespace tersor::model {
namespace {

Config checked(Config config) {
  const int sizes[] = {config.layers,   config.hidden,   config.intermediate, config.heads,
                       config.kv_heads, config.head_dim, config.vocab,        config.context};
  if (*std::min_element(std::begin(sizes), std::end(sizes)) < 1)
    throw Error("model configuration: layers, hidden, intermediate, heads, kv_heads, head_dim, vocab and context must all be above 0");
  if (config.heads % config.kv_heads)
    throw Error("model configuration: " + std::to_string(config.heads) + " query heads cannot share " + std::to_string(config.kv_heads) +
                " key heads evenly");
  if (config.rotary_dims == 0) config.rotary_dims = config.head_dim;
  return config;
}

// Most tokens of a call that becomes one graph node: a node keeps everything computed on the way.
constexpr int kFusedRows = 8;

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// [1, L, N] to its last row [1, 1, N].
mx::array last_row(const mx::array& x) { return x.shape(1) == 1 ? x : mx::slice(x, {0, x.shape(1) - 1, 0}, x.shape()); }

}  // namespace

struct Transformer::Impl {
  const uint64_t number = next_number();  // tells it from every other model of the process
  Config config;
  ops::Policy policy;
  ops::Precision precision;
  cache::Identity identity;
  std::optional<text::Tokenizer> tokenizer;
  Weights weights;
  std::vector<ops::RopeParams> rope;  // by layer
  std::vector<ops::Choice> chosen;    // each distinct one once
  ops::Choice rope_choice;
  bool fusable = false;  // all runs by kernels of ours
  bool gpu = mx::default_device() == mx::Device::gpu;
  mx::Dtype activations = mx::float32;
  ops::Choice linear_choice;  // holds for all weights: not fast unless every one is

  Impl(ModelData data, ops::Policy p, ops::Precision precision_class);
  cache::LayerShape cache_shape() const { return {1, config.kv_heads, config.head_dim, config.head_dim}; }

  void choose_kernels();
  void check(std::span<const int32_t> tokens, const cache::KvCache& cache) const;
  ops::RmsNorm norm_of(const mx::array& weight) const { return {weight, config.norm_eps}; }
  mx::array block(int index, mx::array x, cache::LayerCache& cache, int64_t position, bool last_only) const;
  mx::array run(const mx::array& ids, cache::KvCache& cache, bool last_only) const;
};

Transformer::Impl::Impl(ModelData data, ops::Policy p, ops::Precision precision_class)
    : config(checked(data.config)),
      policy(p),
      precision(precision_class),
      identity(data.identity),
      tokenizer(data.format == kRandomFormat ? std::nullopt : std::optional(take_tokenizer(data))),
      weights(take_weights(data)) {
  if (gpu)
    activations = gpu_activations(weights, config.activation, policy), move_to_gpu(weights, activations);
  else if (ops::LinearPacker::applies(policy))
    pack_weights(weights, precision);
  const auto frequencies = rope_inverse_frequencies(config);
  const mx::array inv_freq(frequencies.begin(), {static_cast<int>(frequencies.size())}, mx::float32);
  for (const auto& layer : weights.layers) rope.push_back({config.head_dim, inv_freq, 1.0f, layer.q_norm, layer.k_norm, config.norm_eps});
  choose_kernels();
}

void Transformer::Impl::choose_kernels() {
  const auto add = [&](std::string_view op, std::string_view variant, int head_dim) {
    chosen.push_back(ops::choose(op, variant, activations, head_dim, policy));
    return chosen.back();
  };
  std::set<std::string> seen;
  const auto add_linear = [&](const ops::LinearWeight& weight) {
    if (!seen.insert(weight.str()).second) return;
    const auto choice = add("linear", weight.str(), 0);
    if (seen.size() == 1 || !choice.fast) linear_choice = choice;
  };
  for (const auto& layer : weights.layers) {
    for (const auto& weight : layer.qkv) add_linear(weight);
    for (const auto* weight : {&layer.o, &layer.gate, &layer.up, &layer.down}) add_linear(*weight);
  }
  add_linear(weights.head());
  fusable = linear_choice.fast;
  rope_choice = add("rope", config.qk_norm ? "qk_norm" : "", config.head_dim);
}

void Transformer::Impl::check(std::span<const int32_t> tokens, const cache::KvCache& cache) const {
  if (tokens.empty()) throw Error("no tokens to run: give at least one");
  if (cache.layers() != config.layers || !(cache.layer(0).shape() == cache_shape()))
    throw Error("this KV cache was made for a model of other sizes: make it with make_cache of the model that uses it");
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= config.vocab)
      throw Error("token " + std::to_string(tokens[i]) + " at place " + std::to_string(i) +
                  " is outside the vocabulary: ids go from 0 to " + std::to_string(config.vocab - 1));
  const int64_t total = cache.tokens() + static_cast<int64_t>(tokens.size());
  if (total > config.context)
    throw Error(std::to_string(total) + " tokens do not fit the model's context of " + std::to_string(config.context) +
                ": shorten the text or start a new cache");
}

// One layer. With last_only the result is the last row alone: earlier rows then only matter as keys and values.
mx::array Transformer::Impl::block(int index, mx::array x, cache::LayerCache& cache, int64_t position, bool last_only) const {
  const LayerWeights& layer = weights.layers[static_cast<size_t>(index)];
  const ops::RopeParams& turn = rope[static_cast<size_t>(index)];
  mx::array q = x;
  if (gpu) {  // where queries and keys are turned on their way into the cache
    const auto qkv = ops::linear(x, layer.qkv, linear_choice, norm_of(layer.input_norm));
    q = cache.append_turned({qkv[0], qkv[1], qkv[2]}, turn, rope_choice);
    if (last_only) q = last_row(q);
  } else {
    auto qkv = ops::project_qkv(x, norm_of(layer.input_norm), layer.qkv, turn, position, last_only, linear_choice, rope_choice);
    cache.append(qkv.k, qkv.v);
    q = std::move(qkv.q);
  }
  if (last_only) x = last_row(x);
  cache::AttendOptions options;
  options.sliding_window = config.sliding_window;
  const ops::RmsNorm norm = norm_of(layer.post_norm);
  return ops::feed_forward(cache.attend(q, options), x, {layer.o, norm, layer.gate, layer.up, layer.down, config.activation},
                           linear_choice);
}

Transformer::Transformer(ModelData data, ops::Policy policy, ops::Precision precision)
    : impl_(std::make_unique<Impl>(std::move(data), policy, precision)) {
  // Streams, threads and the pages of the weights are made ready here, so that the first real step takes as long as any other.
  auto cache = make_cache({});
  const int32_t token = 0;
  mx::eval(forward({&token, 1}, cache));
}

Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

const Config& Transformer::config() const { return impl_->config; }
ops::Precision Transformer::precision() const { return impl_->precision; }
const cache::Identity& Transformer::identity() const { return impl_->identity; }
const text::Tokenizer& Transformer::tokenizer() const {
  if (!impl_->tokenizer) throw Error("a model of random weights has no tokenizer: run it on token ids, or load a model from its files");
  return *impl_->tokenizer;
}
text::ChatFormat Transformer::chat_format() const { return text::recognise_chat(tokenizer().data().chat_template); }
uint64_t Transformer::weight_bytes() const { return impl_->weights.bytes(); }
std::vector<ops::Choice> Transformer::choices() const { return impl_->chosen; }

cache::KvCache Transformer::make_cache(const cache::KvSpec& spec, Dtype full_dtype, const cache::ModelCalibration& calibration) const {
  return cache::KvCache(spec, impl_->config.layers, impl_->cache_shape(), full_dtype, impl_->policy, impl_->precision, calibration);
}

// Logits [rows, vocab] of ids [L], whatever device they are on; not fused yet.
mx::array Transformer::Impl::run(const mx::array& ids, cache::KvCache& cache, bool last_only) const {
  const int length = ids.shape(0);
  const int64_t position = cache.tokens();
  mx::array x = ops::embed(mx::reshape(ids, {1, length}), weights.embedding, activations);
  for (int i = 0; i < config.layers; ++i) x = block(i, x, cache.layer(i), position, last_only && i + 1 == config.layers);
  for (int i = 0; i < config.layers; ++i)
    if (cache.layer(i).tokens() != position + length)
      throw Error("layer " + std::to_string(i) + " did not use its KV cache: it holds " + std::to_string(cache.layer(i).tokens()) +
                  " tokens instead of " + std::to_string(position + length) + "; trim all layers alike or start a new cache");
  return ops::logits(x, weights.head(), linear_choice, norm_of(weights.norm));
}

mx::array Transformer::forward(std::span<const int32_t> tokens, cache::KvCache& cache, bool last_only) const {
  const Impl& m = *impl_;
  m.check(tokens, cache);
  const int length = static_cast<int>(tokens.size());
  const mx::array ids(tokens.begin(), {length}, mx::int64);  // checked without waiting for a device
  if (auto again = m.fusable ? cache.repeat(ids, m.number) : std::nullopt) return *again;
  const mx::array rows = m.run(ids, cache, last_only);
  return length <= kFusedRows && m.fusable ? cache.fuse(rows, ids, m.number) : rows;
}

bool Transformer::runs_ahead() const { return impl_->fusable && impl_->gpu && ops::has_argmax(); }

mx::array Transformer::next_token(const mx::array& token, cache::KvCache& cache, int choices) const {
  const Impl& m = *impl_;
  if (!runs_ahead()) throw Error("next_token needs a GPU with fast kernels for the model's weights: pick from the logits of forward");
  if (token.size() != 1 || cache.tokens() >= m.config.context || cache.layers() != m.config.layers)
    throw Error("next_token takes one token, room for it in the context of " + std::to_string(m.config.context) +
                ", and this model's cache");
  const mx::array id = mx::reshape(token, {1});
  return cache.fuse(ops::argmax(m.run(id, cache, true), choices), id, m.number);
}

mx::array Transformer::prefill(std::span<const int32_t> tokens, cache::KvCache& cache, int chunk,
                               const std::function<void(int64_t)>& progress) const {
  if (chunk < 1) throw Error("prefill in chunks of " + std::to_string(chunk) + " tokens: give 1 or more");
  impl_->check(tokens, cache);
  cache.reserve(cache.tokens() + static_cast<int64_t>(tokens.size()));
  for (size_t done = 0;;) {
    const auto part = tokens.subspan(done, std::min(tokens.size() - done, static_cast<size_t>(chunk)));
    const mx::array logits = forward(part, cache);
    done += part.size();
    if (done == tokens.size()) mx::eval(logits);
    cache.eval();  // for earlier chunks this alone: their logits and the last layer's attention are never computed
    if (progress) progress(static_cast<int64_t>(done));
    if (done == tokens.size()) return logits;
  }
}

}  // namespace tersor::model
