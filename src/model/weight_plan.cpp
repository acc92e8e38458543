#include "model/weight_plan.h"

#include <algorithm>
#include <cmath>

#include "base/sniff.h"
#include "model/device_memory.h"

namespace tersor::model {
namespace {

void layer_tensors(const Config& c, int layer, const std::function<void(const TensorSpec&)>& f) {
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  f({.part = "input_layernorm", .layer = layer, .rows = c.hidden});
  f({.part = "self_attn.q_proj", .layer = layer, .rows = q, .cols = c.hidden, .bias = c.qkv_bias, .rotary_heads = c.heads});
  f({.part = "self_attn.k_proj", .layer = layer, .rows = kv, .cols = c.hidden, .bias = c.qkv_bias, .rotary_heads = c.kv_heads});
  f({.part = "self_attn.v_proj", .layer = layer, .rows = kv, .cols = c.hidden, .bias = c.qkv_bias});
  f({.part = "self_attn.o_proj", .layer = layer, .rows = c.hidden, .cols = q, .bias = c.o_bias});
  if (c.qk_norm) {
    f({.part = "self_attn.q_norm", .layer = layer, .rows = c.head_dim});
    f({.part = "self_attn.k_norm", .layer = layer, .rows = c.head_dim});
  }
  f({.part = "post_attention_layernorm", .layer = layer, .rows = c.hidden});
  f({.part = "mlp.gate_proj", .layer = layer, .rows = c.intermediate, .cols = c.hidden, .bias = c.mlp_bias});
  f({.part = "mlp.up_proj", .layer = layer, .rows = c.intermediate, .cols = c.hidden, .bias = c.mlp_bias});
  f({.part = "mlp.down_proj", .layer = layer, .rows = c.hidden, .cols = c.intermediate, .bias = c.mlp_bias});
}

}  // namespace

std::string TensorSpec::name() const {
  if (layer >= 0) return "model.layers." + std::to_string(layer) + "." + part;
  return part == "lm_head" ? part : "model." + part;
}

void for_each_tensor(const Config& c, const std::function<void(const TensorSpec&)>& f) {
  f({.part = "embed_tokens", .rows = c.vocab, .cols = c.hidden});
  f({.part = "norm", .rows = c.hidden});
  if (!c.tied_head) f({.part = "lm_head", .rows = c.vocab, .cols = c.hidden});
  for (int layer = 0; layer < c.layers; ++layer) layer_tensors(c, layer, f);
}

void check_config(const Config& c, uint64_t tensors, const std::string& place) {
  const auto fail = [&](const std::string& text) { throw Error(place + ": " + text); };
  const auto num = [](auto value) { return std::to_string(value); };
  if (static_cast<uint64_t>(c.layers) > tensors)
    fail("names " + num(c.layers) + " layers, but there are only " + num(tensors) + " tensors");
  if (c.heads % c.kv_heads) fail(num(c.heads) + " query heads are not a multiple of " + num(c.kv_heads) + " key and value heads");
  if (c.head_dim % 2 || c.head_dim > 1024) fail("a head size of " + num(c.head_dim) + " is not supported; even sizes up to 1024 are");
  if (int64_t{c.heads} * c.head_dim > INT32_MAX) fail(num(c.heads) + " heads of size " + num(c.head_dim) + " are too large");
  if (c.rotary_dims < 2 || c.rotary_dims % 2 || c.rotary_dims > c.head_dim)
    fail("rope turns " + num(c.rotary_dims) + " dimensions of heads of " + num(c.head_dim) +
         "; an even number up to the head size is needed");
  if (!(c.norm_eps > 0 && c.norm_eps < 1)) fail("the epsilon of the norms is " + num(c.norm_eps) + "; it must lie between 0 and 1");
  if (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta)) fail("the rope base is " + num(c.rope_theta) + "; it must be positive");
  if (!(c.linear_rope_factor > 0) || !std::isfinite(c.linear_rope_factor))
    fail("the rope scaling factor is " + num(c.linear_rope_factor) + "; it must be positive");
  if (const auto& s = c.llama3_scaling;
      s && !(s->factor > 0 && s->low_freq_factor > 0 && s->high_freq_factor > s->low_freq_factor && s->original_context > 0))
    fail("the llama3 rope scaling is not possible: factors must be positive, the high one above the low one");
}

uint64_t LoadPlan::bytes() const {
  uint64_t sum = 0;
  for (const auto& job : jobs) sum += job.bytes;
  return sum;
}

void check_memory(const LoadPlan& plan) {
  const std::string what = plan.data.path.string() + ": the weights take " + human_bytes(plan.bytes());
  for (const auto require : {require_memory, require_device_memory})
    require(plan.bytes(), what, "use a smaller or more strongly quantised model");
}

ModelData run_plan(LoadPlan plan, bool pack) {
  WeightDigests digests;
  ops::LinearPacker packer;
  for (auto& job : plan.jobs) {
    job.run(plan.data);
    digests.add_new(plan.data.linears);
    for (auto& [name, weight] : plan.data.linears)
      if (pack && ops::LinearPacker::takes(weight)) weight = packer.pack(weight);
  }
  plan.data.identity = identity_of(plan.data, digests);
  return std::move(plan.data);
}

void check_shape(const std::string& place, const std::string& tensor, const std::vector<uint64_t>& found,
                 const std::vector<uint64_t>& expected) {
  if (found != expected)
    throw Error(place + ": tensor " + printable(tensor) + " has shape " + shape_text(found) + ", but the configuration needs " +
                shape_text(expected));
}

void add_end_tokens(text::TokenizerData& tokenizer, const std::vector<int32_t>& ids) {
  auto& ends = tokenizer.end_tokens;
  ends.insert(ends.end(), ids.begin(), ids.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace tersor::model
