#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::vector<int> depths{512, 4096};
  int steps = 32, repeat = 5, chunk = 512;
  bool json = false;
};

struct Result {
  int depth = 0;
  cache::KvSpec spec;
  double prefill_tok_s = 0;
  std::vector<double> samples;
  uint64_t kv_bytes = 0, kv_bytes_full = 0, peak_bytes = 0;
};

std::vector<int32_t> random_tokens(int count, int vocab) {
  std::mt19937 generator(1);
  std::uniform_int_distribution<int32_t> any(0, vocab - 1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (auto& id : ids) id = any(generator);
  return ids;
}

// One setting at one depth: a prompt in its cache, to which every measurement returns.
class Arm {
 public:
  Arm(const Options& options, const model::Transformer& model, const cache::KvSpec& spec, std::span<const int32_t> tokens,
      Progress& progress)
      : model_(model),
        steps_(options.steps),
        cache_(model.make_cache(spec, options.model.full_dtype())),
        depth_(static_cast<int64_t>(tokens.size())) {
    result_.depth = static_cast<int>(depth_);
    result_.spec = spec;
    cache_.reserve(depth_ + steps_);
    if (!tokens.empty()) prefill(tokens, options.chunk, progress);
    result_.kv_bytes = cache_.bytes();
    result_.kv_bytes_full = cache_.bytes_full();
    if (cache_.trimmable() < steps_ || !returns_by_trimming()) original_ = std::make_unique<cache::KvCache>(cache_.copy());
    decode();  // first steps load code and pages
    restore();
  }

  void measure() {
    result_.samples.push_back(steps_ / timed([&] { decode(); }));
    restore();
  }

  Result& result() { return result_; }
  uint64_t bytes() const { return cache_.bytes() + (original_ ? original_->bytes() : 0); }

 private:
  void prefill(std::span<const int32_t> tokens, int chunk, Progress& progress) {
    const double seconds = timed([&] {
      last_ = argmax(model_.prefill(tokens, cache_, chunk, [&](int64_t done) {
        throw_if_interrupted();
        progress.update(done, depth_);
      }));
    });
    result_.prefill_tok_s = static_cast<double>(depth_) / seconds;
  }

  static int32_t argmax(const mx::array& logits) { return static_cast<int32_t>(mx::argmax(logits).item<uint32_t>()); }

  void decode() {
    if (model_.runs_ahead()) return decode_ahead();
    int32_t token = last_;
    for (int i = 0; i < steps_; ++i) {
      throw_if_interrupted();
      token = argmax(model_.forward({&token, 1}, cache_));
    }
    cache_.eval();
  }

  // The host waits for a token when the step after it is on its way.
  void decode_ahead() {
    mx::array token = mx::array({last_}, {1}, mx::int32);
    for (int i = 0; i < steps_; ++i) {
      throw_if_interrupted();
      const mx::array next = model_.next_token(token, cache_, model_.config().vocab);
      mx::async_eval(next);
      if (i > 0) token.item<int32_t>();
      token = next;
    }
    token.item<int32_t>();
    cache_.eval();
  }

  // A window moves tokens out of full precision for good; such a cache is copied instead.
  bool returns_by_trimming() const { return result_.spec.window == 0; }

  void restore() {
    if (!original_) {
      if (cache_.trim(steps_) != steps_) throw Error("the cache " + kv_name(result_.spec) + " could not be taken back to its depth");
      return;
    }
    cache_ = original_->copy();
    cache_.reserve(depth_ + steps_);
    cache_.eval();
  }

  const model::Transformer& model_;
  int steps_;
  cache::KvCache cache_;
  std::unique_ptr<cache::KvCache> original_;
  int64_t depth_;
  int32_t last_ = 0;
  Result result_;
};

std::vector<Result> measure_depth(const Options& options, const model::Transformer& model, std::span<const cache::KvSpec> specs,
                                  int depth) {
  Progress progress("prompt");
  const auto tokens = random_tokens(depth, model.config().vocab);
  std::vector<std::unique_ptr<Arm>> arms;
  for (const auto& spec : specs) {
    progress.relabel("prompt of " + std::to_string(depth) + " with " + kv_name(spec));
    uint64_t others = 0;
    for (const auto& arm : arms) others += arm->bytes();
    mx::clear_cache();
    mx::reset_peak_memory();
    arms.push_back(std::make_unique<Arm>(options, model, spec, tokens, progress));
    const uint64_t peak = mx::get_peak_memory();
    arms.back()->result().peak_bytes = peak - std::min(peak, others);
  }
  progress.relabel("decoding at " + std::to_string(depth));
  int64_t done = 0;
  alternate(arms.size(), options.repeat, [&](size_t i) {
    arms[i]->measure();
    progress.update(++done, static_cast<int64_t>(arms.size()) * options.repeat);
  });
  std::vector<Result> results;
  for (auto& arm : arms) results.push_back(std::move(arm->result()));
  return results;
}

Json as_json(const std::vector<Result>& results, const Options& options) {
  Json list = Json::array();
  for (const auto& result : results)
    list.push_back({{"depth", result.depth},
                    {"kv", kv_name(result.spec)},
                    {"lossy", lossy(result.spec)},
                    {"prefill_tok_s", result.prefill_tok_s},
                    {"decode_tok_s", median(result.samples)},
                    {"samples", result.samples},
                    {"kv_bytes", result.kv_bytes},
                    {"kv_bytes_full", result.kv_bytes_full},
                    {"peak_bytes", result.peak_bytes}});
  return {{"benchmark", "decode"},
          {"model", options.model.path},
          {"precision_class", "same weights"},
          {"steps", options.steps},
          {"repeat", options.repeat},
          {"kernels", options.model.kernels},
          {"dtype", options.model.dtype},
          {"machine", to_json(describe_machine())},
          {"results", list}};
}

std::string as_table(const std::vector<Result>& results) {
  Rows rows{{"kv", "depth", "prefill tok/s", "decode tok/s", "lowest", "highest", "cache", "of full", "peak"}};
  for (const auto& r : results) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    rows.push_back({kv_name(r.spec), std::to_string(r.depth), fixed(r.prefill_tok_s, 1), fixed(median(r.samples), 1), fixed(*low, 1),
                    fixed(*high, 1), human_bytes(r.kv_bytes), human_bytes(r.kv_bytes_full), human_bytes(r.peak_bytes)});
  }
  return table(rows);
}

int run(const Options& options) {
  options.model.check();
  const auto specs = options.kv.specs({cache::KvSpec::parse("full"), cache::KvSpec::recommended()});
  const model::Transformer model = options.model.load();
  for (const int depth : options.depths)
    if (depth + options.steps > model.config().context)
      throw Error("--depth " + std::to_string(depth) + " and --steps " + std::to_string(options.steps) + " exceed the model's context of " +
                  std::to_string(model.config().context));
  std::vector<Result> results;
  for (const int depth : options.depths)
    for (auto& result : measure_depth(options, model, specs, depth)) results.push_back(std::move(result));
  if (options.json)
    print_json(as_json(results, options));
  else
    print(as_table(results));
  return 0;
}

}  // namespace

void add_bench_decode(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "decode",
      "Measure decoding one token at a time behind a prompt of each depth. The settings take turns in every repeat, the order turns round "
      "each time, and the figure is the median; all settings run the same weights.");
  app->footer("Example: tersor bench decode --model SmolLM2.gguf --depth 512,4096 --kv full --kv turboquant:4");
  auto options = std::make_shared<Options>();
  options->model.add(*app);
  options->kv.add(*app, true, "full and " + kv_name(cache::KvSpec::recommended()));
  add_whole_list(*app, "--depth", options->depths, 0, kMostTokens, "Tokens in the cache before decoding")->default_str("512,4096");
  app->add_option("--steps", options->steps, "Tokens a sample decodes")->type_name("N")->check(whole(1, 100000))->capture_default_str();
  app->add_option("--repeat", options->repeat, "Samples of each setting")->type_name("R")->check(whole(1, 1000))->capture_default_str();
  app->add_option("--chunk", options->chunk, "Prompt tokens processed at a time")
      ->type_name("N")
      ->check(whole(1, kMostChunk))
      ->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
