// What the benchmarks share: lists of depths, seeds, medians, the facts a figure needs beside it.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "tersor/cache.h"

namespace tersor::cli {

void add_bench_decode(CLI::App& parent, Commands& commands);
void add_bench_model(CLI::App& parent, Commands& commands);
void add_bench_attention(CLI::App& parent, Commands& commands);
void add_bench_linear(CLI::App& parent, Commands& commands);
void add_bench_encode(CLI::App& parent, Commands& commands);
void add_bench_pack(CLI::App& parent, Commands& commands);

/// The middle value; the mean of the two in the middle for an even number.
double median(std::vector<double> samples);
/// Seconds that f takes.
template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
/// Calls f(setting) for every setting, `repeats` times over; every other round runs backwards, so that drift hits all alike.
void alternate(size_t settings, int repeats, const std::function<void(size_t)>& f);
/// Prints the results so far as JSON, to which it adds "interrupted", or as text; after an interrupt, also how many samples there are.
/// Returns the status to end with.
int finish_bench(bool as_json, size_t samples, const std::function<Json()>& json, const std::function<std::string()>& text);
/// The samples of all results; takes out the results that have none, as an interrupt leaves them.
template <class Result>
size_t keep_sampled(std::vector<Result>& results) {
  std::erase_if(results, [](const Result& r) { return r.samples.empty(); });
  size_t samples = 0;
  for (const Result& r : results) samples += r.samples.size();
  return samples;
}
/// True when the setting does not keep keys and values as they are.
bool lossy(const cache::KvSpec& spec);

}  // namespace tersor::cli
