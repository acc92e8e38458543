#include "model/layer_weights.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <string>

namespace tersor::model {
namespace {

// Takes tensors one by one, checks them and counts them.
class Taker {
 public:
  explicit Taker(ModelData& data) : data_(data) {}

  mx::array vector(const std::string& name, int size) {
    const auto node = data_.vectors.extract(name);
    if (node.empty()) fail(name, "is missing");
    const mx::array& values = node.mapped();
    if (values.ndim() != 1 || values.shape(0) != size)
      fail(name, "should have " + std::to_string(size) + " numbers, has " + std::to_string(values.size()));
    return keep(mx::contiguous(mx::astype(values, mx::float32)));
  }

  ops::LinearWeight linear(const std::string& name, int out, int in, bool needs_bias = false) {
    auto node = data_.linears.extract(name);
    if (node.empty()) fail(name + ".weight", "is missing");
    ops::LinearWeight weight = std::move(node.mapped());
    check(name, weight, out, in);
    if (needs_bias && !weight.bias) fail(name + ".bias", "is missing");
    if (!weight.packed) keep(weight.weight);
    if (weight.scales) keep(*weight.scales);
    if (weight.biases) keep(*weight.biases);
    if (weight.bias) weight.bias = keep(mx::contiguous(mx::astype(*weight.bias, mx::float32)));
    return weight;
  }

  const std::vector<mx::array>& taken() const { return taken_; }

 private:
  mx::array keep(const mx::array& a) {
    taken_.push_back(a);
    return a;
  }

  void check(const std::string& name, const ops::LinearWeight& weight, int out, int in) const {
    if ((!weight.packed && weight.weight.ndim() != 2) || weight.out_features() != out || weight.in_features() != in)
      fail(name + ".weight", "does not have the shape [" + std::to_string(out) + ", " + std::to_string(in) + "] of the configuration");
    if (weight.bias && (weight.bias->ndim() != 1 || weight.bias->shape(0) != out))
      fail(name + ".bias", "should have " + std::to_string(out) + " numbers");
    if (!weight.bits || weight.packed) return;
    if (weight.group < 1 || in % weight.group)
      fail(name, "has groups of " + std::to_string(weight.group) + " in rows of " + std::to_string(in));
    const mx::Shape groups{out, in / weight.group};
    const bool needs_biases = weight.coding == Coding::affine;
    if (!weight.scales || weight.scales->shape() != groups || weight.biases.has_value() != needs_biases ||
        (needs_biases && weight.biases->shape() != groups))
      fail(name, "is quantised, but its scales and biases do not fit");
  }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    const std::string place = data_.path.empty() ? "model" : data_.path.string();
    throw Error(place + ": tensor " + name + " " + what + ": the file does not fit its own configuration");
  }

  ModelData& data_;
  std::vector<mx::array> taken_;
};

LayerWeights take_layer(Taker& take, const Config& c, int index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {
      take.vector(prefix + "input_layernorm", c.hidden),
      take.vector(prefix + "post_attention_layernorm", c.hidden),
      c.qk_norm ? std::optional(take.vector(prefix + "self_attn.q_norm", c.head_dim)) : std::nullopt,
      c.qk_norm ? std::optional(take.vector(prefix + "self_attn.k_norm", c.head_dim)) : std::nullopt,
      {take.linear(prefix + "self_attn.q_proj", q, c.hidden, c.qkv_bias),
       take.linear(prefix + "self_attn.k_proj", kv, c.hidden, c.qkv_bias),
       take.linear(prefix + "self_attn.v_proj", kv, c.hidden, c.qkv_bias)},
      take.linear(prefix + "self_attn.o_proj", c.hidden, q, c.o_bias),
      take.linear(prefix + "mlp.gate_proj", c.intermediate, c.hidden, c.mlp_bias),
      take.linear(prefix + "mlp.up_proj", c.intermediate, c.hidden, c.mlp_bias),
      take.linear(prefix + "mlp.down_proj", c.hidden, c.intermediate, c.mlp_bias),
  };
}

// The same numbers as `type`, in memory that an operation of the device has allocated.
mx::array computed(const mx::array& a, mx::Dtype type) {
  if (a.dtype() != type) return mx::astype(a, type);
  return mx::issubdtype(type, mx::integer) ? mx::bitwise_or(a, mx::array(0, type)) : mx::multiply(a, mx::array(1.0f, type));
}

void pack_on_gpu(Weights& weights, mx::Dtype activations) {
  const auto pack = [&](std::initializer_list<ops::LinearWeight*> together, bool paired) {
    std::vector<ops::LinearWeight*> quantised;
    for (auto* w : together)
      if (w->bits) quantised.push_back(w);
    if (!quantised.empty()) ops::LinearPacker::pack_on_gpu(quantised, paired, activations);
  };
  for (auto& layer : weights.layers) {
    pack({&layer.qkv[0], &layer.qkv[1], &layer.qkv[2]}, false);
    pack({&layer.o}, false);
    pack({&layer.gate, &layer.up}, true);
    pack({&layer.down}, false);
  }
  if (weights.own_head) pack({&*weights.own_head}, false);
  pack({&weights.embedding}, false);
}

}  // namespace

Weights take_weights(ModelData& data) {
  const Config& c = data.config;
  Taker take(data);
  auto embedding = take.linear("model.embed_tokens", c.vocab, c.hidden);
  auto head = c.tied_head ? std::nullopt : std::optional(take.linear("lm_head", c.vocab, c.hidden));
  Weights weights{std::move(embedding), std::move(head), take.vector("model.norm", c.hidden), {}};
  weights.layers.reserve(static_cast<size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) weights.layers.push_back(take_layer(take, c, i));
  mx::eval(take.taken());
  return weights;
}

std::vector<ops::LinearWeight*> Weights::linears() {
  std::vector<ops::LinearWeight*> all;
  for (auto& layer : layers) {
    for (auto& w : layer.qkv) all.push_back(&w);
    all.insert(all.end(), {&layer.o, &layer.gate, &layer.up, &layer.down});
  }
  if (own_head) all.push_back(&*own_head);
  all.push_back(&embedding);
  return all;
}

uint64_t Weights::bytes() const {
  uint64_t sum = norm.nbytes() + embedding.nbytes() + (own_head ? own_head->nbytes() : 0);
  for (const auto& layer : layers) {
    for (const auto& w : layer.qkv) sum += w.nbytes();
    for (const auto* w : {&layer.o, &layer.gate, &layer.up, &layer.down}) sum += w->nbytes();
    for (const auto* norms : {&layer.input_norm, &layer.post_norm}) sum += norms->nbytes();
    for (const auto* norms : {&layer.q_norm, &layer.k_norm}) sum += *norms ? (*norms)->nbytes() : 0;
  }
  return sum;
}

mx::Dtype gpu_activations(Weights& weights, Activation activation, ops::Policy policy) {
  if (!ops::LinearPacker::applies_on_gpu(policy) || activation != Activation::silu) return mx::float32;
  const auto all = weights.linears();
  const mx::Dtype type = all[0]->bits ? all[0]->scales->dtype() : all[0]->weight.dtype();
  if (type != mx::float16 && type != mx::bfloat16) return mx::float32;
  for (const auto* w : all)
    if (w->bits ? !ops::LinearPacker::takes_on_gpu(*w, type) : w->weight.dtype() == mx::float32 || w->in_features() % 16)
      return mx::float32;
  for (const auto& layer : weights.layers)
    if (layer.gate.bits != layer.up.bits || layer.gate.group != layer.up.group) return mx::float32;
  return type;
}

void move_to_gpu(Weights& weights, mx::Dtype activations) {
  std::vector<mx::array*> vectors{&weights.norm};
  for (auto& layer : weights.layers) {
    vectors.insert(vectors.end(), {&layer.input_norm, &layer.post_norm});
    for (auto* norm : {&layer.q_norm, &layer.k_norm})
      if (*norm) vectors.push_back(&**norm);
  }
  for (auto* vector : vectors) mx::eval(*vector = computed(*vector, mx::float32));
  const bool packs = activations != mx::float32;
  for (auto* w : weights.linears()) {
    if (w->bias) mx::eval(w->bias.emplace(computed(*w->bias, activations)));
    if (!w->bits || !packs) mx::eval(w->weight = computed(w->weight, w->bits ? mx::uint32 : activations));
    for (auto* part : {&w->scales, &w->biases})
      if (*part && !packs) mx::eval(part->emplace(computed(**part, (*part)->dtype() == mx::uint8 ? mx::uint8 : mx::float32)));
  }
  if (packs) pack_on_gpu(weights, activations);
}

void pack_weights(Weights& weights, ops::Precision precision) {
  ops::LinearPacker packer(precision);
  for (auto* w : weights.linears())
    if (!w->packed) *w = packer.pack(*w);
}

}  // namespace tersor::model
