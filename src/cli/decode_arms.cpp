#include "cli/decode_arms.h"

#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;

constexpr int kFillBlock = 4096;

std::vector<int32_t> random_tokens(int count, int vocab) {
  std::mt19937 generator(1);
  std::uniform_int_distribution<int32_t> any(0, vocab - 1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (auto& id : ids) id = any(generator);
  return ids;
}

// What caches of one depth are filled with. Random keys and values are one block that repeats, the same for every layer.
struct Contents {
  std::vector<int32_t> tokens;   // a prompt, or empty
  std::vector<mx::array> block;  // keys and values, tokens major, or empty

  Contents(const model::Config& config, int depth, Fill fill) {
    if (fill == Fill::prefill) {
      tokens = random_tokens(depth, config.vocab);
      return;
    }
    if (depth == 0) return;
    const mx::Shape shape{1, std::min(depth, kFillBlock), config.kv_heads * config.head_dim};
    mx::random::seed(1);
    for (int i = 0; i < 2; ++i) block.push_back(mx::random::normal(shape));
    mx::eval(block);
  }
};

mx::array first_tokens(const mx::array& block, int count) {
  return count == block.shape(1) ? block : mx::slice(block, {0, 0, 0}, {1, count, block.shape(2)});
}

// One setting at one depth: a cache filled once, to which every measurement returns.
class Arm {
 public:
  Arm(const model::Transformer& model, const cache::KvSpec& spec, int depth, const Contents& contents, const DecodeSetup& setup,
      Progress& progress)
      : model_(model), steps_(setup.steps), cache_(model.make_cache(spec, setup.full_dtype, setup.calibrations.of(spec))), depth_(depth) {
    result_.depth = depth;
    result_.spec = spec;
    cache_.reserve(depth_ + steps_);
    if (!contents.tokens.empty()) prefill(contents.tokens, setup.chunk, progress);
    if (!contents.block.empty()) fill(contents.block, progress);
    result_.kv_bytes = cache_.bytes();
    result_.kv_bytes_full = cache_.bytes_full();
    result_.choices = distinct(cache_.choices());
    if (cache_.trimmable() < steps_ || !returns_by_trimming()) original_ = std::make_unique<cache::KvCache>(cache_.copy());
    decode(true);  // first steps load code and pages
    restore();
  }

  void measure() {
    result_.samples.push_back(steps_ / timed([&] { decode(false); }));
    restore();
  }

  DecodeResult& result() { return result_; }
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

  void fill(std::span<const mx::array> block, Progress& progress) {
    for (int i = 0; i < cache_.layers(); ++i) {
      cache::LayerCache& layer = cache_.layer(i);
      const mx::array q = mx::zeros({1, 1, model_.config().heads * model_.config().head_dim});
      for (int64_t done = 0; done < depth_; done = layer.tokens()) {
        throw_if_interrupted();
        const int count = static_cast<int>(std::min<int64_t>(block[0].shape(1), depth_ - done));
        layer.append(first_tokens(block[0], count), first_tokens(block[1], count));
        mx::eval(layer.arrays());
        if (result_.spec.window) mx::eval(layer.attend(q));  // encodes what the window does not keep
      }
      progress.update(i + 1, cache_.layers());
    }
  }

  static int32_t argmax(const mx::array& logits) { return static_cast<int32_t>(mx::argmax(logits).item<uint32_t>()); }

  void decode(bool check) {
    if (model_.runs_ahead() && !check) return decode_ahead();
    int32_t token = last_;
    for (int i = 0; i < steps_; ++i) {
      throw_if_interrupted();
      const mx::array logits = model_.forward({&token, 1}, cache_);
      token = argmax(logits);
      if (check && !std::isfinite(mx::sum(mx::abs(logits)).item<float>()))
        throw Error("the logits of a step behind " + std::to_string(depth_) + " tokens in a cache " + kv_name(result_.spec) +
                    " are not finite: nothing was measured");
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
  DecodeResult result_;
};

}  // namespace

Fill parse_fill(const std::string& text) {
  if (text == "prefill") return Fill::prefill;
  if (text == "random") return Fill::random;
  throw Error("--fill " + text + " is unknown: give random or prefill");
}

std::string name_of(Fill fill) { return fill == Fill::prefill ? "prefill" : "random"; }

void DecodeSetup::add(CLI::App& app) {
  app.add_option("--steps", steps, "Tokens a sample decodes")->type_name("N")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--repeat", repeat, "Samples of each setting")->type_name("R")->check(whole(1, 1000))->capture_default_str();
  app.add_option("--chunk", chunk, "Prompt tokens processed at a time")->type_name("N")->check(whole(1, kMostChunk))->capture_default_str();
}

double DecodeResult::tok_s() const { return median(samples); }
double DecodeResult::ms() const { return samples.empty() ? 0 : 1e3 / tok_s(); }

std::vector<DecodeResult> measure_decode(const model::Transformer& model, std::span<const cache::KvSpec> specs, int depth,
                                         const DecodeSetup& setup) {
  Progress progress("filling");
  const Contents contents(model.config(), depth, setup.fill);
  std::vector<std::unique_ptr<Arm>> arms;
  until_interrupted([&] {
    for (const auto& spec : specs) {
      progress.relabel((setup.fill == Fill::prefill ? "prompt of " : "random cache of ") + std::to_string(depth) + " with " +
                       kv_name(spec));
      uint64_t others = 0;
      for (const auto& arm : arms) others += arm->bytes();
      mx::clear_cache();
      mx::reset_peak_memory();
      arms.push_back(std::make_unique<Arm>(model, spec, depth, contents, setup, progress));
      const uint64_t peak = mx::get_peak_memory();
      arms.back()->result().peak_bytes = peak - std::min(peak, others);
    }
    progress.relabel("decoding at " + std::to_string(depth));
    int64_t done = 0;
    alternate(arms.size(), setup.repeat, [&](size_t i) {
      arms[i]->measure();
      progress.update(++done, static_cast<int64_t>(arms.size()) * setup.repeat);
    });
  });
  std::vector<DecodeResult> results;
  for (auto& arm : arms) results.push_back(std::move(arm->result()));
  return results;
}

std::vector<PrefillResult> measure_prefill(const model::Transformer& model, std::span<const cache::KvSpec> specs, int tokens,
                                           const DecodeSetup& setup) {
  Progress progress("prefill of " + std::to_string(tokens));
  const auto ids = random_tokens(tokens, model.config().vocab);
  const auto run = [&](const cache::KvSpec& spec, std::span<const int32_t> part) {
    cache::KvCache cache = model.make_cache(spec, setup.full_dtype, setup.calibrations.of(spec));
    return timed([&] { mx::eval(model.prefill(part, cache, setup.chunk, [](int64_t) { throw_if_interrupted(); })); });
  };
  std::vector<PrefillResult> results;
  until_interrupted([&] {
    for (const auto& spec : specs) {
      run(spec, std::span(ids).first(static_cast<size_t>(std::min(tokens, setup.chunk))));  // loads code and pages
      results.push_back({tokens, spec, {}});
    }
    int64_t done = 0;
    alternate(specs.size(), setup.repeat, [&](size_t i) {
      results[i].samples.push_back(tokens / run(specs[i], ids));
      progress.update(++done, static_cast<int64_t>(specs.size()) * setup.repeat);
    });
  });
  return results;
}

Json to_json(const DecodeResult& result) {
  return {{"depth", result.depth},          {"kv", kv_name(result.spec)},
          {"lossy", lossy(result.spec)},    {"prefill_tok_s", result.prefill_tok_s},
          {"decode_tok_s", result.tok_s()}, {"samples", result.samples},
          {"kv_bytes", result.kv_bytes},    {"kv_bytes_full", result.kv_bytes_full},
          {"peak_bytes", result.peak_bytes}};
}

}  // namespace tersor::cli
