#include <algorithm>
#include <functional>
#include <memory>

#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "codec/random.h"
#include "kernels/cpu/pack.h"
#include "ops/pack.h"

namespace tersor::cli {
namespace {

struct Options {
  int bits = 4, repeat = 50;
  int64_t count = 1'000'000;
  bool json = false;
};

struct Result {
  std::string name;
  uint64_t bytes;               // read and written
  std::vector<double> samples;  // milliseconds
  double gigabytes_per_second() const { return median(samples) > 0 ? static_cast<double>(bytes) / median(samples) / 1e6 : 0; }
};

// Normal numbers, 2^bits levels evenly spaced over three standard deviations, and room for all that is made of them.
struct Arrays {
  std::vector<float> levels, thresholds, x;
  std::vector<uint8_t> codes;
  std::vector<uint32_t> words;

  explicit Arrays(const Options& o)
      : levels(size_t{1} << o.bits), x(static_cast<size_t>(o.count)), codes(x.size()), words(kernels::packed_bytes(x.size(), o.bits) / 4) {
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = 6.0f * (static_cast<float>(i) + 0.5f) / static_cast<float>(levels.size()) - 3;
    for (size_t i = 0; i + 1 < levels.size(); ++i) thresholds.push_back((levels[i] + levels[i + 1]) / 2);
    uint64_t state = 1;
    for (float& v : x) v = static_cast<float>(codec::normal(state));
  }
};

std::vector<Result> measure(const Options& options) {
  Progress progress("packing");
  Arrays a(options);
  const uint64_t n = a.x.size(), words = 4 * a.words.size();
  std::vector<Result> results{{"quantise", 5 * n, {}}, {"pack", n + words, {}}, {"unpack", n + words, {}}, {"dequantise", 5 * n, {}}};
  const std::function<void()> steps[] = {
      [&] { ops::quantise_levels(a.x, a.thresholds, a.codes); }, [&] { ops::pack_codes(a.codes, options.bits, a.words); },
      [&] { ops::unpack_codes(a.words, options.bits, a.codes); }, [&] { ops::dequantise_levels(a.codes, a.levels, a.x); }};
  until_interrupted([&] {
    for (const auto& step : steps) step();  // loads code and pages; from here on the numbers are levels
    alternate(results.size(), options.repeat, [&](size_t i) {
      steps[i]();  // brings its arrays as near as they fit
      results[i].samples.push_back(1e3 * timed(steps[i]));
    });
  });
  return results;
}

Json as_json(const std::vector<Result>& results, const Options& options) {
  Json list = Json::array();
  for (const auto& r : results)
    list.push_back(
        {{"name", r.name}, {"ms", median(r.samples)}, {"gb_s", r.gigabytes_per_second()}, {"bytes", r.bytes}, {"samples", r.samples}});
  return {{"benchmark", "pack"},
          {"bits", options.bits},
          {"count", options.count},
          {"repeat", options.repeat},
          {"machine", to_json(describe_machine())},
          {"results", list}};
}

std::string as_table(const std::vector<Result>& results) {
  Rows rows{{"step", "ms", "lowest", "highest", "GB/s"}};
  for (const auto& r : results) {
    const auto [low, high] = std::minmax_element(r.samples.begin(), r.samples.end());
    rows.push_back({r.name, fixed(median(r.samples), 4), fixed(*low, 4), fixed(*high, 4), fixed(r.gigabytes_per_second(), 2)});
  }
  return table(rows);
}

int run(const Options& options) {
  if (static_cast<uint64_t>(options.count) > memory_limit() / 32)
    throw Error("--count " + std::to_string(options.count) + " does not fit the memory; use a smaller one");
  std::vector<Result> results = measure(options);
  const size_t samples = keep_sampled(results);
  return finish_bench(
      options.json, samples, [&] { return as_json(results, options); }, [&] { return as_table(results); });
}

}  // namespace

void add_bench_pack(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "pack",
      "Measure flat arrays on all threads: numbers to the nearest of 2^BITS levels (quantise), their codes to bits (pack), and both back. "
      "The steps take turns; the figure is the median, GB/s count what is read and written.");
  app->footer("Example: tersor bench pack --bits 3 --count 1000000");
  auto options = std::make_shared<Options>();
  app->add_option("--bits", options->bits, "Bits a code")->type_name("B")->check(whole(1, 8))->capture_default_str();
  app->add_option("--count", options->count, "Numbers")->type_name("N")->check(whole(1, int64_t{1} << 32))->capture_default_str();
  app->add_option("--repeat", options->repeat, "Samples of each step")->type_name("R")->check(whole(1, 100000))->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
