#include "cli/options.h"

#include <cerrno>
#include <cstdlib>

#include "cli/input.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

std::string range_text(const std::string& kind, const std::string& low, const std::string& high, const std::string& got) {
  return "must be a " + kind + " from " + low + " to " + high + ", not \"" + got + "\"";
}

}  // namespace

CLI::Validator whole(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        errno = 0;
        char* end = nullptr;
        const long long value = std::strtoll(text.c_str(), &end, 10);
        if (!text.empty() && *end == '\0' && errno == 0 && value >= low && value <= high) return {};
        return range_text("whole number", std::to_string(low), std::to_string(high), text);
      },
      "");
}

CLI::Validator real(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (!text.empty() && *end == '\0' && value >= low && value <= high) return {};
        return range_text("number", brief(low), brief(high), text);
      },
      "");
}

CLI::Validator file_name() {
  return CLI::Validator([](std::string& text) -> std::string { return text.empty() ? "must be the name of a file, not empty" : ""; }, "");
}

CLI::Option* add_whole_list(CLI::App& app, const std::string& name, std::vector<int>& to, int64_t low, int64_t high,
                            const std::string& description) {
  // Split here: CLI11's delimiter drops empty items without a word.
  const auto take = [&to, name, number = whole(low, high)](const std::vector<std::string>& lists) {
    to.clear();
    for (const auto& list : lists)
      for (size_t at = 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        std::string word = list.substr(at, end - at);
        if (const std::string fault = number(word); !fault.empty()) throw CLI::ValidationError(name, fault);
        to.push_back(std::stoi(word));
        at = end + 1;
      }
  };
  return app.add_option_function<std::vector<std::string>>(name, take, description)->type_name("LIST")->allow_extra_args(false);
}

void ComputeOptions::add(CLI::App& app, bool with_dtype) {
  app.add_option("--kernels", kernels, "auto: the fastest there is; require: refuse without a fast kernel; forbid: composed MLX operations")
      ->type_name("auto|require|forbid")
      ->capture_default_str();
  app.add_option("--precision", precision,
                 "Quantised weights and compressed caches on the CPU. int16: integer sums, activations, queries and attention weights "
                 "rounded to 16-bit integers; exact: float throughout")
      ->type_name("int16|exact")
      ->capture_default_str();
  if (!with_dtype) return;
  dtype_option = app.add_option("--dtype", dtype,
                                "What uncompressed caches store: `full`, windows, sinks and skipped layers. f16 unless given, whatever the "
                                "weights are; a loaded "
                                "cache keeps its own")
                     ->type_name("f16|bf16|f32")
                     ->capture_default_str();
}

std::optional<Dtype> ComputeOptions::given_dtype() const {
  return dtype_option && dtype_option->count() ? std::optional(full_dtype()) : std::nullopt;
}

void ComputeOptions::check() const {
  policy();
  precision_class();
  full_dtype();
}

void ModelOptions::add(CLI::App& app, bool with_dtype) {
  app.add_option("-m,--model", path, "A .gguf file, or a folder with config.json and *.safetensors")->required()->type_name("PATH");
  ComputeOptions::add(app, with_dtype);
}

void ModelOptions::check() const {
  ComputeOptions::check();
  require_exists(path);
}

model::Transformer ModelOptions::load() const {
  Progress progress("loading " + path);
  const auto pack = ops::LinearPacker::applies(policy()) ? std::optional(precision_class()) : std::nullopt;
  model::ModelData data = model::load(path, pack);
  progress.clear();
  if (!data.unused.empty()) note(path + ": not used: " + data.unused);
  return model::Transformer(std::move(data), policy(), precision_class());
}

cache::KvSpec parse_kv(const std::string& text) {
  if (text == "recommended") return cache::KvSpec::recommended();
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return cache::KvSpec::parse(text);
  return cache::KvSpec::parse(text.substr(0, slash), text.substr(slash + 1));
}

std::string kv_name(const cache::KvSpec& spec) {
  cache::KvSpec rest = spec;
  rest.keys = spec.values;
  return spec.keys == spec.values ? spec.str() : spec.keys.str() + "/" + rest.str();
}

codec::Role parse_role(const std::string& text) {
  if (text == "keys") return codec::Role::keys;
  if (text == "values") return codec::Role::values;
  throw Error("unknown role \"" + text + "\": use keys or values");
}

void add_calibration(CLI::App& app, std::vector<std::string>& files) {
  app.add_option("--calibration", files,
                 "What `tersor calibrate` found out, for codecs that need it; repeat it for several: each is used where its codec is")
      ->type_name("FILE")
      ->check(file_name())
      ->allow_extra_args(false);
}

void KvOptions::add(CLI::App& app, bool several, const std::string& default_text) {
  const std::string repeat = several ? "; repeat it to compare" : "";
  auto* option = app.add_option("--kv", kv,
                                "Codec of keys and values, e.g. full, affine:8, turboquant:4; KEYS/VALUES where they differ" + repeat +
                                    " (default " + default_text + ")");
  option->type_name("CODEC")->allow_extra_args(false);
  if (!several) option->multi_option_policy(CLI::MultiOptionPolicy::Throw)->expected(1);
  app.add_option("--window", window, "Recent tokens kept in full precision; instead of what --kv says")
      ->type_name("N")
      ->check(whole(0, kMostTokens));
  app.add_option("--sinks", sinks, "First tokens kept in full precision; instead of what --kv says")
      ->type_name("N")
      ->check(whole(0, kMostTokens));
  add_whole_list(app, "--skip-layers", skip, -4096, 4096, "Layers kept in full precision, e.g. 0,1,-1 (negative: from the last)");
  add_calibration(app, calibration);
}

void KvOptions::add_halves(CLI::App& app) {
  app.add_option("--kv-keys", keys, "Codec of the keys alone")->type_name("CODEC");
  app.add_option("--kv-values", values, "Codec of the values alone")->type_name("CODEC");
}

cache::KvSpec KvOptions::with_overrides(cache::KvSpec spec) const {
  if (window) spec.window = *window;
  if (sinks) spec.sinks = *sinks;
  if (!skip.empty()) spec.skip = skip;
  return spec;
}

cache::KvSpec KvOptions::spec(const cache::KvSpec& otherwise) const {
  if (keys.empty() && values.empty()) return with_overrides(kv.empty() ? otherwise : parse_kv(kv.front()));
  if ((keys.empty() || values.empty()) && kv.empty())
    throw Error("--kv-keys and --kv-values belong together: give both, or --kv for the other half");
  return with_overrides(cache::KvSpec::parse(keys.empty() ? kv.front() : keys, values.empty() ? kv.front() : values));
}

std::vector<cache::KvSpec> KvOptions::specs(const std::vector<cache::KvSpec>& otherwise) const {
  std::vector<cache::KvSpec> list;
  for (const auto& text : kv) list.push_back(with_overrides(parse_kv(text)));
  if (!kv.empty()) return list;
  for (const auto& spec : otherwise) list.push_back(with_overrides(spec));
  return list;
}

void GenerationOptions::add(CLI::App& app) {
  app.add_option("-n,--max-tokens", max_tokens, "Most tokens of a reply")
      ->type_name("N")
      ->check(whole(1, kMostTokens))
      ->capture_default_str();
  app.add_option("--temp", sampling.temperature, "Temperature; 0 takes the likeliest token")
      ->type_name("T")
      ->check(real(0, 100))
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Keep the K likeliest tokens; 0: all")
      ->type_name("K")
      ->check(whole(0, kMostTokens))
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "Keep the likeliest tokens of this total probability")
      ->type_name("P")
      ->check(real(0, 1))
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p, "Drop tokens below this share of the likeliest one")
      ->type_name("P")
      ->check(real(0, 1))
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty, "Divides the logits of recent tokens; 1: off")
      ->type_name("R")
      ->check(real(0.01, 100))
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "Seed of the sampler")
      ->type_name("N")
      ->check(whole(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_option("--stop", stop, "End the reply before this text; may be repeated")->type_name("TEXT")->allow_extra_args(false);
  app.add_option("--chunk", chunk, "Prompt tokens processed at a time")->type_name("N")->check(whole(1, kMostChunk))->capture_default_str();
  app.add_flag("--ignore-end", ignore_end, "Go on past end tokens (for measurements)");
}

model::GenerateOptions GenerationOptions::make() const {
  for (const auto& text : stop)
    if (text.empty()) throw Error("--stop is empty: give the text that ends a reply");
  const model::Sampler checked(sampling);
  model::GenerateOptions options;
  options.max_tokens = max_tokens;
  options.sampling = sampling;
  options.stop = stop;
  options.ignore_end = ignore_end;
  options.prefill_chunk = chunk;
  return options;
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "Print one JSON object instead of text"); }

}  // namespace tersor::cli
