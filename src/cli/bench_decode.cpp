#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/decode_arms.h"
#include "cli/machine.h"
#include "cli/options.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::vector<int> depths{512, 4096};
  DecodeSetup setup;
  bool json = false;
};

Json as_json(const std::vector<DecodeResult>& results, const Options& options) {
  Json list = Json::array();
  for (const auto& result : results) list.push_back(to_json(result));
  return {{"benchmark", "decode"},
          {"model", options.model.path},
          {"precision_class", "same weights"},
          {"steps", options.setup.steps},
          {"repeat", options.setup.repeat},
          {"kernels", options.model.kernels},
          {"dtype", options.model.dtype},
          {"machine", to_json(describe_machine())},
          {"results", list}};
}

std::string as_table(const std::vector<DecodeResult>& results) {
  Rows rows{{"kv", "depth", "prefill tok/s", "decode tok/s", "lowest", "highest", "cache", "of full", "peak"}};
  for (const auto& r : results) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    rows.push_back({kv_name(r.spec), std::to_string(r.depth), fixed(r.prefill_tok_s, 1), fixed(r.tok_s(), 1), fixed(*low, 1),
                    fixed(*high, 1), human_bytes(r.kv_bytes), human_bytes(r.kv_bytes_full), human_bytes(r.peak_bytes)});
  }
  return table(rows);
}

int run(const Options& options) {
  options.model.check();
  DecodeSetup setup = options.setup;
  setup.full_dtype = options.model.full_dtype();
  const auto specs = options.kv.specs({cache::KvSpec::parse("full"), cache::KvSpec::recommended()});
  const model::Transformer model = options.model.load();
  setup.calibrations = options.kv.calibrations(&model.identity());
  setup.calibrations.of(specs);
  setup.calibrations.note_unused();
  for (const int depth : options.depths)
    if (depth + setup.steps > model.config().context)
      throw Error("--depth " + std::to_string(depth) + " and --steps " + std::to_string(setup.steps) + " exceed the model's context of " +
                  std::to_string(model.config().context));
  std::vector<DecodeResult> results;
  for (const int depth : options.depths)
    for (auto& result : measure_decode(model, specs, depth, setup)) results.push_back(std::move(result));
  const size_t samples = keep_sampled(results);
  return finish_bench(
      options.json, samples, [&] { return as_json(results, options); }, [&] { return as_table(results); });
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
  options->setup.add(*app);
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
