#include <mlx/random.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;

constexpr int kFillChunk = 512;

struct Options {
  KvOptions kv;
  std::string kernels = "auto", dtype = "f16";
  std::vector<int> depths{512, 4096};
  int heads = 32, kv_heads = 8, head_dim = 128, rows = 1, repeat = 10;
  bool json = false;
};

struct Result {
  int depth = 0;
  cache::KvSpec spec;
  uint64_t bytes = 0;
  std::vector<double> samples;  // milliseconds
  double gigabytes_per_second() const { return median(samples) > 0 ? static_cast<double>(bytes) / median(samples) / 1e6 : 0; }
};

// The first layer's, where files are given.
cache::LayerCalibration calibration_of(const Calibrations& calibrations, const cache::KvSpec& spec) {
  const cache::ModelCalibration layers = calibrations.of(spec);
  return layers.empty() ? cache::LayerCalibration{} : layers.front();
}

cache::LayerCache fill(const Options& options, const cache::KvSpec& spec, const Calibrations& calibrations, int depth) {
  const cache::LayerShape shape{1, options.kv_heads, options.head_dim, options.head_dim};
  cache::LayerCache layer(spec.keys, spec.values, spec.window, spec.sinks, shape, parse_dtype(options.dtype),
                          ops::parse_policy(options.kernels), ops::Precision::int16, calibration_of(calibrations, spec));
  layer.reserve(depth);
  for (int done = 0; done < depth; done += kFillChunk) {
    throw_if_interrupted();
    const int count = std::min(kFillChunk, depth - done);
    const mx::Shape size{1, options.kv_heads, count, options.head_dim};
    layer.append(mx::random::normal(size), mx::random::normal(size));
    mx::eval(layer.arrays());
  }
  return layer;
}

std::vector<Result> measure_depth(const Options& options, std::span<const cache::KvSpec> specs, const Calibrations& calibrations,
                                  int depth) {
  Progress progress("attention at " + std::to_string(depth));
  mx::random::seed(1);
  std::vector<cache::LayerCache> layers;
  std::vector<Result> results;
  const mx::array q = mx::random::normal({1, options.heads, options.rows, options.head_dim});
  const auto attend = [&](size_t i) { return 1e3 * timed([&] { mx::eval(layers[i].attend(q)); }); };
  until_interrupted([&] {
    for (const auto& spec : specs) {
      layers.push_back(fill(options, spec, calibrations, depth));
      results.push_back({depth, spec, 0, {}});
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      attend(i);  // the first run loads code and pages, and the recent window shrinks to its size
      results[i].bytes = layers[i].bytes();
    }
    alternate(layers.size(), options.repeat, [&](size_t i) { results[i].samples.push_back(attend(i)); });
  });
  return results;
}

Json as_json(const std::vector<Result>& results, const Options& options) {
  Json list = Json::array();
  for (const auto& result : results)
    list.push_back({{"depth", result.depth},
                    {"kv", kv_name(result.spec)},
                    {"lossy", lossy(result.spec)},
                    {"attend_ms", median(result.samples)},
                    {"samples", result.samples},
                    {"bytes", result.bytes},
                    {"gb_s", result.gigabytes_per_second()}});
  return {{"benchmark", "attention"}, {"heads", options.heads},   {"kv_heads", options.kv_heads}, {"head_dim", options.head_dim},
          {"rows", options.rows},     {"repeat", options.repeat}, {"kernels", options.kernels},   {"machine", to_json(describe_machine())},
          {"results", list}};
}

std::string as_table(const std::vector<Result>& results) {
  Rows rows{{"kv", "depth", "attend ms", "lowest", "highest", "bytes", "GB/s"}};
  for (const auto& r : results) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    rows.push_back({kv_name(r.spec), std::to_string(r.depth), fixed(median(r.samples), 3), fixed(*low, 3), fixed(*high, 3),
                    human_bytes(r.bytes), fixed(r.gigabytes_per_second(), 2)});
  }
  return table(rows);
}

void check(const Options& options, std::span<const cache::KvSpec> specs) {
  if (std::any_of(specs.begin(), specs.end(), [](const auto& spec) { return !spec.skip.empty(); }))
    throw Error("--skip-layers names layers of a model, and one layer alone is measured here: leave it out");
  if (options.heads % options.kv_heads != 0)
    throw Error("--heads " + std::to_string(options.heads) + " is not a multiple of --kv-heads " + std::to_string(options.kv_heads));
  for (const int depth : options.depths) {
    const uint64_t bytes =
        uint64_t{8} * static_cast<uint64_t>(depth) * static_cast<uint64_t>(options.kv_heads) * static_cast<uint64_t>(options.head_dim);
    if (bytes > memory_limit() / 4)
      throw Error("--depth " + std::to_string(depth) + " needs " + human_bytes(bytes) + " a cache; use a smaller one");
    if (options.rows > depth) throw Error("--rows " + std::to_string(options.rows) + " exceeds --depth " + std::to_string(depth));
  }
}

int run(const Options& options) {
  const auto specs = options.kv.specs({cache::KvSpec::parse("full"), cache::KvSpec::recommended()});
  check(options, specs);
  const Calibrations calibrations = options.kv.calibrations(nullptr);
  calibrations.of(specs);
  calibrations.note_unused();
  std::vector<Result> results;
  for (const int depth : options.depths)
    for (auto& result : measure_depth(options, specs, calibrations, depth)) results.push_back(std::move(result));
  const size_t samples = keep_sampled(results);
  return finish_bench(
      options.json, samples, [&] { return as_json(results, options); }, [&] { return as_table(results); });
}

}  // namespace

void add_bench_attention(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "attention",
      "Measure attention of one layer over a cache of random keys and values: milliseconds a call, and the cache's bytes over that time. "
      "The settings take turns; the figure is the median.");
  app->footer("Example: tersor bench attention --heads 32 --kv-heads 8 --head-dim 128 --depth 8192 --kv full --kv turboquant:4");
  auto options = std::make_shared<Options>();
  app->add_option("--heads", options->heads, "Query heads")->type_name("N")->check(whole(1, 1024))->capture_default_str();
  app->add_option("--kv-heads", options->kv_heads, "Key and value heads")->type_name("N")->check(whole(1, 1024))->capture_default_str();
  app->add_option("--head-dim", options->head_dim, "Numbers of a head")->type_name("N")->check(whole(1, 4096))->capture_default_str();
  app->add_option("--rows", options->rows, "Query rows a call")->type_name("N")->check(whole(1, 4096))->capture_default_str();
  add_whole_list(*app, "--depth", options->depths, 1, kMostTokens, "Tokens in the cache")->default_str("512,4096");
  options->kv.add(*app, true, "full and " + kv_name(cache::KvSpec::recommended()));
  app->add_option("--kernels", options->kernels, "auto, require a fast kernel, or forbid them")
      ->type_name("auto|require|forbid")
      ->capture_default_str();
  app->add_option("--dtype", options->dtype, "What `full` caches store")->type_name("f16|bf16|f32")->capture_default_str();
  app->add_option("--repeat", options->repeat, "Samples of each setting")->type_name("R")->check(whole(1, 100000))->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
