#include "model/calibrate.h"

#include <filesystem>
#include <memory>

#include "base/digest.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/report.h"
#include "codec/calibrate.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::string text, out;
  int tokens = 0, chunk = 512;
  uint64_t seed = 0;
  bool json = false;

  std::string partial() const { return out + ".partial"; }
};

// The layers that are done, in memory and in a file beside the one that is wanted.
class Work {
 public:
  Work(const Options& options, const cache::KvSpec& spec, const model::Transformer& model, std::span<const int32_t> tokens)
      : options_(options) {
    const model::Config& config = model.config();
    saved_.keys = spec.keys, saved_.values = spec.values;
    saved_.shape = {1, config.kv_heads, config.head_dim, config.head_dim};
    saved_.layers = config.layers;
    saved_.model = model.identity();
    Digest digest;
    digest.add(tokens.data(), tokens.size_bytes());
    saved_.run = {{"seed", std::to_string(options.seed)},
                  {"tokens", std::to_string(tokens.size())},
                  {"text", digest.str()},
                  {"precision", std::string(name_of(options.model.precision_class()))},
                  {"kernels", std::string(name_of(options.model.policy()))}};
    if (std::filesystem::exists(options.partial())) resume(model);
  }

  int done() const { return static_cast<int>(saved_.done.size()); }
  int resumed() const { return resumed_; }
  const cache::SavedCalibration& saved() const { return saved_; }

  void add(cache::LayerCalibration layer) {
    saved_.done.push_back(std::move(layer));
    if (!saved_.complete()) return cache::save_calibration(options_.partial(), saved_);
    cache::save_calibration(options_.out, saved_);
    std::error_code code;
    std::filesystem::remove(options_.partial(), code);  // one that stays is taken for what it is: the same layers again
  }

 private:
  void resume(const model::Transformer& model) {
    const std::string path = options_.partial();
    cache::SavedCalibration earlier = loaded(path, model);
    const auto same = [&](const std::string& what, const std::string& theirs, const std::string& ours) {
      if (theirs != ours)
        throw Error(path + ": holds an interrupted calibration whose " + what + " is " + theirs + ", not " + ours +
                    "; go on with the same options, or remove it to begin anew");
    };
    same("codec of keys", earlier.keys.str(), saved_.keys.str());
    same("codec of values", earlier.values.str(), saved_.values.str());
    for (const auto& [key, value] : saved_.run) same(key, earlier.run[key], value);
    saved_.done = std::move(earlier.done);
    if (saved_.complete()) saved_.done.pop_back();  // so that there is a last layer to finish with
    resumed_ = done();
    note(path + ": going on after " + std::to_string(resumed_) + " of " + std::to_string(saved_.layers) + " layers");
  }

  static cache::SavedCalibration loaded(const std::string& path, const model::Transformer& model) {
    try {
      return cache::load_calibration(path, &model.identity());
    } catch (const Error& error) { throw Error(std::string(error.what()) + "; remove it to begin anew"); }
  }

  const Options& options_;
  cache::SavedCalibration saved_;
  int resumed_ = 0;
};

std::vector<int32_t> text_ids(const Options& options, const std::string& text, const model::Transformer& model) {
  std::vector<int32_t> ids = model.tokenizer().encode(text);
  if (options.tokens > 0 && ids.size() > static_cast<size_t>(options.tokens)) ids.resize(static_cast<size_t>(options.tokens));
  return ids;
}

// An interrupt ends this between two steps, with what is in the work's file.
model::Calibrated calibrate(const Options& options, const cache::KvSpec& spec, const model::Transformer& model,
                            std::span<const int32_t> tokens, Work& work) {
  Progress progress("calibrating");
  std::string shown;
  model::CalibrateOptions run;
  run.spec = spec, run.seed = options.seed, run.chunk = options.chunk, run.first_layer = work.done();
  run.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    throw_if_interrupted();
    if (shown != stage) progress.relabel(shown = stage);
    progress.update(done, total);
  };
  run.finished = [&](int, cache::LayerCalibration layer) { work.add(std::move(layer)); };
  const auto& data = model.tokenizer().data();
  return model::calibrate(model, tokens, data.add_bos ? data.bos : std::nullopt, run);
}

Json as_json(const Options& options, const cache::KvSpec& spec, const Work& work, const model::Calibrated& result) {
  const bool complete = work.saved().complete();
  return {{"out", complete ? options.out : options.partial()},
          {"kv", to_json(spec)},
          {"layers", work.saved().layers},
          {"layers_done", work.done()},
          {"layers_resumed", work.resumed()},
          {"kv_heads", work.saved().shape.kv_heads},
          {"head_dim", work.saved().shape.key_dim},
          {"tokens", result.tokens},
          {"key_vectors", result.key_vectors},
          {"value_vectors", result.value_vectors},
          {"seed", options.seed},
          {"bytes", complete ? std::filesystem::file_size(options.out) : 0},
          {"digest", complete ? Json(cache::digest_of(work.saved().done)) : Json()},
          {"warnings", result.warnings},
          {"warning", result.warning},
          {"interrupted", !complete}};
}

std::string as_text(const Options& options, const cache::KvSpec& spec, const Work& work, const model::Calibrated& result) {
  const int64_t vectors = std::max(result.key_vectors, result.value_vectors);
  return options.out + ": " + kv_name(spec) + " of " + std::to_string(work.saved().layers) + " layers and " +
         std::to_string(work.saved().shape.kv_heads) + " KV heads, from " + std::to_string(vectors) + " of " +
         std::to_string(result.tokens) + " tokens (" + human_bytes(std::filesystem::file_size(options.out)) + ")\n";
}

void check(const Options& options, const cache::KvSpec& spec) {
  options.model.check();
  if (!options.kv.given()) throw Error("name the codec to calibrate for: --kv, or --kv-keys and --kv-values");
  if (!spec.calibrated())
    throw Error("codec " + kv_name(spec) +
                " needs no calibration; those that do: turboquant:2.5, qjl with outliers=, vecinfer, and any with "
                "centre=calibrated");
  if (std::filesystem::exists(options.out))
    throw Error(options.out + ": exists; name another file, or remove it, so that no calibration is lost by mistake");
  check_writable(options.out);
  check_writable(options.partial());
}

// Before the work, not after it.
bool warn_of_few(const cache::KvSpec& spec, int dim, int64_t tokens) {
  const int64_t advised = std::max(codec::advised_vectors(spec.keys, dim), codec::advised_vectors(spec.values, dim));
  if (tokens >= advised) return false;
  note("warning: " + std::to_string(tokens) + " tokens are few for the codebooks of " + kv_name(spec) + "; a text of " +
       std::to_string(advised) + " tokens gives better ones");
  return true;
}

int run(const Options& options) {
  const cache::KvSpec spec = options.kv.spec({});
  check(options, spec);
  const std::string text = read_text(options.text);
  if (text.empty()) throw Error(options.text + ": the text is empty");
  const model::Transformer model = options.model.load();
  const auto ids = text_ids(options, text, model);
  Work work(options, spec, model, ids);
  const bool few = warn_of_few(spec, model.config().head_dim, static_cast<int64_t>(ids.size()));
  model::Calibrated result;
  until_interrupted([&] { result = calibrate(options, spec, model, ids, work); });
  if (options.json)
    print_json(as_json(options, spec, work, result));
  else if (work.saved().complete())
    print(as_text(options, spec, work, result));
  if (result.warnings && !few) note("warning, of " + std::to_string(result.warnings) + " codebooks: " + result.warning);
  if (work.saved().complete()) return 0;
  if (work.done()) note(options.partial() + ": keeps what is done; the same command goes on there");
  return end_interrupted(work.done(), "layer");
}

}  // namespace

void add_calibrate(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "calibrate",
      "Find out what a codec needs to know of a model: run it over a text and make codebooks, channel orders or means of its keys and "
      "values, for --calibration of the other commands. Finished layers are kept in FILE.partial until all are done; after Ctrl-C the same "
      "command goes on there.");
  app->footer("Example: tersor calibrate --model SmolLM2.gguf --text book.txt --kv vecinfer:2,sub=4 --out vecinfer2.safetensors");
  auto options = std::make_shared<Options>();
  options->model.add(*app, false);
  app->add_option("--text", options->text, "Text file; - reads standard input")->required()->type_name("FILE");
  app->add_option("--kv,--codec", options->kv.kv, "Codec of keys and values; KEYS/VALUES where they differ")
      ->type_name("CODEC")
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->expected(1);
  options->kv.add_halves(*app);
  app->add_option("-o,--out", options->out, "Where the calibration goes")->required()->type_name("FILE.safetensors")->check(file_name());
  app->add_option("--tokens", options->tokens, "Use only the first N tokens of the text")->type_name("N")->check(whole(1, kMostTokens));
  app->add_option("--chunk", options->chunk, "Tokens processed at a time")
      ->type_name("N")
      ->check(whole(1, kMostChunk))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Of the sample and of the codebooks")
      ->type_name("N")
      ->check(whole(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
