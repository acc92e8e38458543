#include "cli/bench.h"

#include <algorithm>

#include "cli/interrupt.h"

namespace tersor::cli {

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

void alternate(size_t settings, int repeats, const std::function<void(size_t)>& f) {
  for (int round = 0; round < repeats; ++round)
    for (size_t i = 0; i < settings; ++i) {
      throw_if_interrupted();
      f(round % 2 ? settings - 1 - i : i);
    }
}

int finish_bench(bool as_json, size_t samples, const std::function<Json()>& json, const std::function<std::string()>& text) {
  const bool interrupted = interrupt_pending();
  if (as_json) {
    Json document = json();
    document["interrupted"] = interrupted;
    print_json(document);
  } else {
    print(text());
  }
  return interrupted ? end_interrupted(static_cast<int64_t>(samples), "sample") : 0;
}

bool lossy(const cache::KvSpec& spec) { return spec.keys.family != codec::Family::full || spec.values.family != codec::Family::full; }

void add_bench(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "bench", "Measure decoding, a whole model by its shape, one layer's attention, linear layers, encoding, or packing.");
  add_bench_decode(*app, commands);
  add_bench_model(*app, commands);
  add_bench_attention(*app, commands);
  add_bench_linear(*app, commands);
  add_bench_encode(*app, commands);
  add_bench_pack(*app, commands);
}

}  // namespace tersor::cli
