#include "model/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/sniff.h"

namespace tersor::model::hf {
namespace {

constexpr std::array<std::string_view, 4> kFamilies = {"llama", "mistral", "qwen2", "qwen3"};

void check_family(const Section& json) {
  const std::string family = json.string("model_type");
  if (std::find(kFamilies.begin(), kFamilies.end(), family) == kFamilies.end())
    json.fail("model_type " + in_quotes(family) + " is not supported; supported: llama, mistral, qwen2, qwen3");
  if (const auto& classes = json.value("architectures"); classes.is_array() && !classes.empty() && classes[0].is_string())
    if (const auto name = classes[0].get<std::string>(); !name.ends_with("ForCausalLM"))
      json.fail("architecture " + in_quotes(name) + " is not supported; a ...ForCausalLM is needed");
}

// The name that Hugging Face gives an activation; Gemma's key comes before the older one.
Activation read_activation(const Section& json) {
  if (json.all().contains("hidden_act") && !json.has("hidden_act") && !json.has("hidden_activation"))
    json.fail("key \"hidden_act\" is null; the name of an activation, such as \"silu\", is needed");
  const std::string key = json.has("hidden_activation") ? "hidden_activation" : "hidden_act", name = json.string(key, "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  json.fail(key + " " + in_quotes(name) + " is not supported; supported: silu, gelu, gelu_pytorch_tanh, gelu_new");
}

int default_context(const std::string& family) { return family == "llama" ? 2048 : family == "mistral" ? 131072 : 32768; }

void read_heads(const Section& json, Config& c) {
  c.heads = json.size("num_attention_heads");
  c.kv_heads = json.size("num_key_value_heads", c.heads);
  if (!json.has("head_dim") && c.family != "qwen3" && c.hidden % c.heads)
    json.fail("hidden_size " + std::to_string(c.hidden) + " is not a multiple of num_attention_heads " + std::to_string(c.heads));
  c.head_dim = json.size("head_dim", c.family == "qwen3" ? 128 : std::max(1, c.hidden / c.heads));
}

void read_llama3(const Section& rope, Config& c) {
  c.llama3_scaling = Config::Llama3Scaling{rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor"),
                                           rope.size("original_max_position_embeddings")};
}

// "rope_scaling" with "type" or "rope_type", or the newer "rope_parameters", which also holds rope_theta.
void read_rope(const Section& json, Config& c) {
  const auto parameters = json.section("rope_parameters");
  const auto rope = parameters ? parameters : json.section("rope_scaling");
  c.rope_theta = json.number("rope_theta", parameters ? parameters->number("rope_theta", 10000.0f) : 10000.0f);
  const float partial = json.number("partial_rotary_factor", parameters ? parameters->number("partial_rotary_factor", 1.0f) : 1.0f);
  if (!(partial > 0 && partial <= 1)) json.fail_key("partial_rotary_factor", "a number above 0 and up to 1");
  c.rotary_dims = static_cast<int>(std::lround(static_cast<double>(c.head_dim) * static_cast<double>(partial)));
  if (!rope) return;
  const std::string type = rope->string("rope_type", rope->string("type", "default"));
  if (type == "linear")
    c.linear_rope_factor = rope->number("factor");
  else if (type == "llama3")
    read_llama3(*rope, c);
  else if (type != "default" && type != "none")
    json.fail("rope scaling " + in_quotes(type) + " is not supported; supported: default, linear, llama3");
}

// "layer_types" says it per layer where it is given; only models in which all layers agree are supported.
std::optional<bool> window_in_all_layers(const Section& json) {
  const auto& types = json.value("layer_types");
  if (types.is_null()) return {};
  if (!types.is_array() || types.empty()) json.fail_key("layer_types", "a list of strings");
  for (const auto& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      json.fail_key("layer_types", "a list of full_attention or sliding_attention");
    if (type != types[0]) json.fail("layer_types mixes full and sliding attention, which is not supported");
  }
  return types[0] == "sliding_attention";
}

int read_window(const Section& json, const Config& c) {
  if (c.family == "llama" || !json.has("sliding_window")) return 0;
  const bool qwen = c.family != "mistral";
  if (qwen && !json.boolean("use_sliding_window", false)) return 0;
  const int window = json.size("sliding_window");
  if (const auto all = window_in_all_layers(json)) return *all ? window : 0;
  if (!qwen || !json.has("max_window_layers")) return window;
  // Qwen: the first max_window_layers layers attend to everything.
  if (json.value("max_window_layers") == 0) return window;
  const int full = json.size("max_window_layers");
  if (full < c.layers)
    json.fail("max_window_layers " + std::to_string(full) + " of " + std::to_string(c.layers) +
              " layers mixes full and sliding attention, which is not supported");
  return 0;
}

void read_biases(const Section& json, Config& c) {
  const bool attention = json.boolean("attention_bias", false);
  c.qkv_bias = c.family == "qwen2" || ((c.family == "llama" || c.family == "qwen3") && attention);
  c.o_bias = (c.family == "llama" || c.family == "qwen3") && attention;
  c.mlp_bias = c.family == "llama" && json.boolean("mlp_bias", false);
}

Coding read_mode(const Section& section) {
  const auto mode = section.string("mode", "affine");
  for (const Coding coding : {Coding::affine, Coding::mxfp4, Coding::mxfp8})
    if (mode == name_of(coding)) return coding;
  section.fail("quantization mode " + in_quotes(mode) + " is not supported; supported: affine, mxfp4, mxfp8");
}

// `defaults`: of the whole model, for a layer's own section. As MLX reads it, a section that names no mode is affine.
Quantisation read_scheme(const Section& section, const Quantisation& defaults) {
  const Coding coding = read_mode(section);
  if (coding != Coding::affine) {
    const Quantisation q{coding == Coding::mxfp4 ? 4 : 8, 32, coding};
    const std::string name(name_of(coding));
    if (section.size("bits", q.bits) != q.bits) section.fail_key("bits", std::to_string(q.bits) + ", as mode " + name + " has,");
    if (section.size("group_size", q.group) != q.group) section.fail_key("group_size", "32, as mode " + name + " has,");
    return q;
  }
  const bool same = defaults.bits && defaults.coding == Coding::affine;
  const Quantisation q{section.size("bits", same ? std::optional(defaults.bits) : std::nullopt),
                       section.size("group_size", same ? std::optional(defaults.group) : std::nullopt)};
  if (q.bits > 8 || q.bits == 1 || q.bits == 7) section.fail_key("bits", "2, 3, 4, 5, 6 or 8");
  if (q.group != 32 && q.group != 64 && q.group != 128) section.fail_key("group_size", "32, 64 or 128");
  return q;
}

// The schemes of one section into `result`.
void read_schemes(const Section& json, const Section& section, FolderConfig& result) {
  if (section.has("quant_method"))
    if (const auto method = section.string("quant_method"); method != "affine")
      json.fail("quantization method " + in_quotes(method) + " is not supported; supported: MLX affine (bits and group_size)");
  result.quantisation = read_scheme(section, {});
  for (const auto& [key, value] : section.all().items()) {
    if (value.is_object())
      result.overrides[key] = read_scheme(*section.section(key), *result.quantisation);
    else if (value.is_boolean() && key.find('.') != std::string::npos)
      result.overrides[key] = value.get<bool>() ? result.quantisation : std::nullopt;
  }
}

bool says_the_same(const Section& json, const Section& section, const FolderConfig& as) {
  try {
    FolderConfig other;
    read_schemes(json, section, other);
    return other.quantisation == as.quantisation && other.overrides == as.overrides;
  } catch (const Error&) { return false; }
}

// MLX writes "quantization", and beside it the same as "quantization_config", where Hugging Face looks.
void read_quantisation(const Section& json, FolderConfig& result) {
  const auto own = json.section("quantization"), other = json.section("quantization_config");
  if (!own && !other) return;
  read_schemes(json, own ? *own : *other, result);
  if (own && other && !says_the_same(json, *other, result))
    json.fail("quantization and quantization_config disagree; take out the one that does not describe the tensors");
}

}  // namespace

std::optional<Quantisation> FolderConfig::of(const std::string& module) const {
  if (const auto found = overrides.find(module); found != overrides.end()) return found->second;
  return quantisation;
}

FolderConfig read_folder_config(const Section& json) {
  check_family(json);
  FolderConfig result;
  Config& c = result.config;
  c.family = json.string("model_type");
  c.layers = json.size("num_hidden_layers");
  c.hidden = json.size("hidden_size");
  c.intermediate = json.size("intermediate_size");
  c.vocab = json.size("vocab_size");
  c.context = json.size("max_position_embeddings", default_context(c.family));
  c.norm_eps = json.number("rms_norm_eps", 1e-6f);
  c.qk_norm = c.family == "qwen3";
  c.tied_head = json.boolean("tie_word_embeddings", false);
  result.tie_given = json.has("tie_word_embeddings");
  read_heads(json, c);
  read_rope(json, c);
  read_biases(json, c);
  c.activation = read_activation(json);
  c.sliding_window = read_window(json, c);
  read_quantisation(json, result);
  return result;
}

}  // namespace tersor::model::hf
