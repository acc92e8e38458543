#include <algorithm>
#include <memory>

#include "cache/kv_size.h"
#include "cli/bench.h"
#include "cli/decode_arms.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"
#include "model/device_memory.h"
#include "model/random_model.h"
#include "model/shapes.h"

namespace tersor::cli {
namespace {

struct Options {
  ComputeOptions compute;
  KvOptions kv;
  std::string shape, weights = "affine:4,group=64", fill = "random";
  std::vector<int> depths{512}, prefill;
  DecodeSetup setup;
  uint64_t seed = 1;
  bool json = false;
};

// Everything that was asked for, checked.
struct Plan {
  model::Config config;
  model::WeightType weights;
  uint64_t weight_bytes = 0;
  std::vector<cache::KvSpec> specs;
  DecodeSetup setup;

  explicit Plan(const Options& options);
};

struct Results {
  uint64_t weight_bytes = 0;
  std::vector<ops::Choice> choices;
  std::vector<DecodeResult> decode;
  std::vector<PrefillResult> prefill;
};

cache::LayerShape layer_shape(const model::Config& c) { return {1, c.kv_heads, c.head_dim, c.head_dim}; }

// The most that caches take at one time: all settings of one depth, with copies where a measurement cannot go back by trimming.
uint64_t cache_bytes(const Plan& plan, int64_t tokens) {
  uint64_t sum = 0;
  for (const auto& spec : plan.specs)
    sum += (spec.window ? 2 : 1) * cache::expected_bytes(spec, plan.config.layers, layer_shape(plan.config), plan.setup.full_dtype, tokens);
  return sum;
}

Plan::Plan(const Options& options)
    : config(model::config_of_shape(options.shape)),
      weights(model::WeightType::parse(options.weights)),
      weight_bytes(model::weight_bytes(config, weights)),
      specs(options.kv.specs({cache::KvSpec::parse("full"), cache::KvSpec::parse("turboquant:4")})),
      setup(options.setup) {
  options.compute.check();
  setup.full_dtype = options.compute.full_dtype();
  setup.fill = parse_fill(options.fill);
  setup.calibrations = options.kv.calibrations(nullptr);  // random weights have no identity
  int deepest = *std::max_element(options.depths.begin(), options.depths.end()) + setup.steps;
  for (const int tokens : options.prefill) deepest = std::max(deepest, tokens);
  config.context = std::max(config.context, deepest);  // random weights do not mind
  for (const auto& spec : specs)                       // refused before anything slow
    cache::KvCache(spec, config.layers, layer_shape(config), setup.full_dtype, options.compute.policy(), options.compute.precision_class(),
                   setup.calibrations.of(spec));
  setup.calibrations.note_unused();
  const uint64_t caches = cache_bytes(*this, deepest);
  model::require_device_memory(weight_bytes + caches,
                               options.shape + ": weights of " + weights.str() + " (" + human_bytes(weight_bytes) + ") and caches of " +
                                   std::to_string(deepest) + " tokens (" + human_bytes(caches) + ") take " +
                                   human_bytes(weight_bytes + caches),
                               "use a smaller shape, depth or number of settings, or fewer bits");
}

model::Transformer make_model(const Options& options, const Plan& plan) {
  Progress progress("making " + options.shape + " of " + plan.weights.str());
  const ops::Policy policy = options.compute.policy();
  const ops::Precision precision = options.compute.precision_class();
  const auto pack = ops::LinearPacker::applies(policy) ? std::optional(precision) : std::nullopt;
  return model::Transformer(model::random_model(options.shape, plan.config, plan.weights, options.seed, pack), policy, precision);
}

Results measure(const Options& options, const Plan& plan) {
  const model::Transformer model = make_model(options, plan);
  Results results{model.weight_bytes(), model.choices(), {}, {}};
  for (const int depth : options.depths)
    for (auto& result : measure_decode(model, plan.specs, depth, plan.setup)) results.decode.push_back(std::move(result));
  for (const int tokens : options.prefill)
    for (auto& result : measure_prefill(model, plan.specs, tokens, plan.setup)) results.prefill.push_back(std::move(result));
  return results;
}

// How the weights met the activations, as their kernels say.
std::string precision_class(const Results& results) {
  const bool integer = std::any_of(results.choices.begin(), results.choices.end(),
                                   [](const auto& choice) { return choice.precision == ops::Precision::int16; });
  return integer ? "same weights, activations in 16-bit integers" : "same weights";
}

Json decode_json(const DecodeResult& result, const std::string& fill) {
  Json json = to_json(result);
  json["filled"] = fill;
  json["decode_ms"] = result.ms();
  json["kernels"] = to_json(result.choices);
  return json;
}

// As config.json writes it, so that another program can make the same model.
Json config_json(const model::Config& c, const model::WeightType& weights) {
  Json json{{"model_type", c.family},
            {"hidden_size", c.hidden},
            {"num_hidden_layers", c.layers},
            {"intermediate_size", c.intermediate},
            {"num_attention_heads", c.heads},
            {"num_key_value_heads", c.kv_heads},
            {"head_dim", c.head_dim},
            {"vocab_size", c.vocab},
            {"max_position_embeddings", c.context},
            {"rms_norm_eps", c.norm_eps},
            {"rope_theta", c.rope_theta},
            {"tie_word_embeddings", c.tied_head}};
  if (const auto& s = c.llama3_scaling)
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", s->factor},
                            {"low_freq_factor", s->low_freq_factor},
                            {"high_freq_factor", s->high_freq_factor},
                            {"original_max_position_embeddings", s->original_context}};
  if (weights.bits) json["quantization"] = {{"group_size", weights.group}, {"bits", weights.bits}};
  if (weights.coding != Coding::affine) json["quantization"]["mode"] = name_of(weights.coding);
  return json;
}

Json as_json(const Results& results, const Options& options, const Plan& plan) {
  Json decode = Json::array(), prefill = Json::array();
  for (const auto& result : results.decode) decode.push_back(decode_json(result, options.fill));
  for (const auto& result : results.prefill)
    prefill.push_back({{"tokens", result.tokens},
                       {"kv", kv_name(result.spec)},
                       {"lossy", lossy(result.spec)},
                       {"prefill_tok_s", median(result.samples)},
                       {"samples", result.samples}});
  return {{"benchmark", "model"},
          {"shape", options.shape},
          {"weights", plan.weights.str()},
          {"seed", options.seed},
          {"config", config_json(plan.config, plan.weights)},
          {"precision_class", precision_class(results)},
          {"weight_bytes", results.weight_bytes},
          {"peak_resident_bytes", peak_resident_bytes()},
          {"steps", plan.setup.steps},
          {"repeat", plan.setup.repeat},
          {"chunk", plan.setup.chunk},
          {"precision", options.compute.precision},
          {"dtype", options.compute.dtype},
          {"policy", options.compute.kernels},
          {"kernels", to_json(results.choices)},
          {"machine", to_json(describe_machine())},
          {"results", decode},
          {"prefill", prefill}};
}

std::string kernel_names(const std::vector<ops::Choice>& choices) {
  std::string text;
  for (const auto& choice : choices) text += (text.empty() ? "" : "; ") + choice.op + " " + choice.problem + ": " + choice.kernel;
  return text;
}

std::string as_text(const Results& results, const Options& options, const Plan& plan) {
  Rows rows{{"kv", "depth", "ms", "decode tok/s", "lowest", "highest", "cache", "of full", "peak"}};
  for (const auto& r : results.decode) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    rows.push_back({kv_name(r.spec), std::to_string(r.depth), fixed(r.ms(), 3), fixed(r.tok_s(), 1), fixed(*low, 1), fixed(*high, 1),
                    human_bytes(r.kv_bytes), human_bytes(r.kv_bytes_full), human_bytes(r.peak_bytes)});
  }
  std::string text = options.shape + ", random weights of " + plan.weights.str() + " (" + human_bytes(results.weight_bytes) + ", " +
                     precision_class(results) + "), caches filled by " + (plan.setup.fill == Fill::random ? "random numbers" : "a prompt") +
                     "\n" + table(rows);
  Rows prefill{{"kv", "prefill of", "tok/s", "lowest", "highest"}};
  for (const auto& r : results.prefill) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    prefill.push_back({kv_name(r.spec), std::to_string(r.tokens), fixed(median(r.samples), 1), fixed(*low, 1), fixed(*high, 1)});
  }
  if (prefill.size() > 1) text += table(prefill);
  std::vector<ops::Choice> kernels = results.choices;
  for (const auto& r : results.decode) kernels.insert(kernels.end(), r.choices.begin(), r.choices.end());
  return text + "kernels: " + kernel_names(distinct(kernels)) + "\n";
}

int run(const Options& options) {
  const Plan plan(options);
  Results results = measure(options, plan);
  const size_t samples = keep_sampled(results.decode) + keep_sampled(results.prefill);
  return finish_bench(
      options.json, samples, [&] { return as_json(results, options, plan); }, [&] { return as_text(results, options, plan); });
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void add_bench_model(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "model",
      "Measure a whole model of random weights, made from a published shape without its files: decoding one token at a time behind caches "
      "of each depth, and prefill. The settings take turns; the figures are medians.");
  app->footer("Example: tersor bench model --shape llama-3.2-1b --weights affine:4 --kv full --kv turboquant:4 --depth 512,8192");
  auto options = std::make_shared<Options>();
  options->setup.repeat = 5;
  app->add_option("--shape", options->shape, "One of " + joined(model::shape_names()))->required()->type_name("NAME");
  app->add_option("--weights", options->weights, model::WeightType::kNames)->type_name("FORMAT")->capture_default_str();
  options->compute.add(*app);
  options->kv.add(*app, true, "full and turboquant:4");
  add_whole_list(*app, "--depth", options->depths, 0, kMostTokens, "Tokens in the cache before decoding")->default_str("512");
  app->add_option("--fill", options->fill, "How they get there: random keys and values, or a prompt that the model runs")
      ->type_name("random|prefill")
      ->capture_default_str();
  add_whole_list(*app, "--prefill", options->prefill, 1, kMostTokens, "Measure prompts of so many tokens too");
  options->setup.add(*app);
  app->add_option("--seed", options->seed, "Of the random weights")
      ->type_name("N")
      ->check(whole(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
