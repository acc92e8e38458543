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
/// True when the setting does not keep keys and values as they are.
bool lossy(const cache::KvSpec& spec);

}  // namespace tersor::cli
