// A model file in the terms of Hugging Face, for `tersor.convert`.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "bindings.h"
#include "model/rope_frequencies.h"
#include "tersor/model.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace tersor::python {
namespace {

nb::object or_none(const std::optional<int32_t>& id) { return id ? nb::cast(*id) : nb::none(); }

// A GGUF holds the divisors that Llama 3's rule gave. The rule's numbers are the same in every published model but for the factor.
std::optional<model::Config::Llama3Scaling> llama3_scaling_of(const model::Config& c) {
  const auto& divisors = c.rope_freq_factors;
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1; })) return c.llama3_scaling;
  model::Config by_rule = c;
  by_rule.rope_freq_factors.clear();
  by_rule.llama3_scaling = {*std::max_element(divisors.begin(), divisors.end()), 1, 4, 8192};
  const auto found = model::rope_inverse_frequencies(c), expected = model::rope_inverse_frequencies(by_rule);
  for (size_t i = 0; i < found.size(); ++i)
    if (std::abs(found[i] - expected[i]) > 1e-3f * expected[i])
      throw Error(
          "the file's rope_freqs do not follow Llama 3's rule, and Hugging Face's configurations have no other; it cannot be converted");
  return by_rule.llama3_scaling;
}

nb::dict config_of(const model::Config& c) {
  nb::dict config;
  config["family"] = c.family;
  config["layers"] = c.layers, config["hidden"] = c.hidden, config["intermediate"] = c.intermediate;
  config["heads"] = c.heads, config["kv_heads"] = c.kv_heads, config["head_dim"] = c.head_dim;
  config["vocab"] = c.vocab, config["context"] = c.context;
  config["norm_eps"] = c.norm_eps, config["rope_theta"] = c.rope_theta;
  config["rotary_dims"] = c.rotary_dims, config["linear_rope_factor"] = c.linear_rope_factor;
  config["tied_head"] = c.tied_head, config["qkv_bias"] = c.qkv_bias, config["o_bias"] = c.o_bias, config["mlp_bias"] = c.mlp_bias;
  config["sliding_window"] = c.sliding_window;
  config["activation"] = std::string(name_of(c.activation));
  if (const auto llama3 = llama3_scaling_of(c)) {
    nb::dict scaling;
    scaling["factor"] = llama3->factor;
    scaling["low_freq_factor"] = llama3->low_freq_factor, scaling["high_freq_factor"] = llama3->high_freq_factor;
    scaling["original_max_position_embeddings"] = llama3->original_context;
    config["llama3_scaling"] = scaling;
  }
  return config;
}

nb::dict step_of(const text::TokenizerData::Step& step) {
  using Kind = text::TokenizerData::Step::Kind;
  static constexpr const char* kKinds[] = {"split_regex", "split_string", "digits", "byte_level"};
  static constexpr const char* kBehaviours[] = {"isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"};
  nb::dict result;
  result["kind"] = kKinds[static_cast<int>(step.kind)];
  if (step.kind == Kind::split_regex || step.kind == Kind::split_string) {
    result["pattern"] = step.pattern, result["invert"] = step.invert;
    result["behaviour"] = kBehaviours[static_cast<int>(step.behaviour)];
  }
  if (step.kind == Kind::digits) result["individual"] = step.individual;
  if (step.kind == Kind::byte_level) result["use_regex"] = step.use_regex, result["add_prefix_space"] = step.add_prefix_space;
  return result;
}

nb::dict tokenizer_of(const text::TokenizerData& t) {
  nb::dict result;
  result["tokens"] = t.tokens, result["merges"] = t.merges;
  nb::list added, steps;
  for (const auto& token : t.added) added.append(nb::make_tuple(token.id, token.content, token.special));
  for (const auto& step : t.pretokenizer) steps.append(step_of(step));
  result["added"] = added, result["pretokenizer"] = steps;
  result["nfc"] = t.nfc, result["ignore_merges"] = t.ignore_merges, result["add_bos"] = t.add_bos;
  result["unk"] = or_none(t.unk), result["bos"] = or_none(t.bos), result["eos"] = or_none(t.eos);
  result["end_tokens"] = t.end_tokens;
  result["chat_template"] = t.chat_template;
  return result;
}

// Arrays by Hugging Face's names, and of quantised ones how.
nb::tuple weights_of(const model::ModelData& data) {
  std::map<std::string, mx::array> arrays;
  nb::dict quantised;
  for (const auto& [name, vector] : data.vectors) arrays.emplace(name + ".weight", vector);
  for (const auto& [name, linear] : data.linears) {
    arrays.emplace(name + ".weight", linear.weight);
    if (linear.scales) arrays.emplace(name + ".scales", *linear.scales);
    if (linear.biases) arrays.emplace(name + ".biases", *linear.biases);
    if (linear.bias) arrays.emplace(name + ".bias", *linear.bias);
    if (linear.bits == 0) continue;
    nb::dict how;
    how["bits"] = linear.bits, how["group_size"] = linear.group, how["mode"] = std::string(name_of(linear.coding));
    quantised[name.c_str()] = how;
  }
  return nb::make_tuple(nb::cast(arrays), quantised);
}

}  // namespace

void bind_model_file(nb::module_& m) {
  m.def(
      "load_model",
      [](const std::string& path) {
        const model::ModelData data = model::load(path);
        const nb::tuple weights = weights_of(data);
        return nb::make_tuple(config_of(data.config), weights[0], weights[1], tokenizer_of(data.tokenizer));
      },
      "path"_a, "What a GGUF file or a model folder holds: (configuration, arrays by name, how arrays are quantised, tokenizer).");
}

}  // namespace tersor::python
