// Decoding behind caches of one depth, measured for several settings in turns.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <vector>

#include "cli/calibrations.h"
#include "cli/output.h"
#include "tersor/model.h"

namespace tersor::cli {

/// Where the tokens before the first decoded one come from: a prompt that the model runs, or random keys and values put into the caches,
/// which takes no quadratic time.
enum class Fill { prefill, random };
Fill parse_fill(const std::string& text);  // throws Error
std::string name_of(Fill fill);

struct DecodeSetup {
  int steps = 32, repeat = 5, chunk = 512;
  Dtype full_dtype = Dtype::f16;
  Fill fill = Fill::prefill;
  Calibrations calibrations;

  /// The options --steps, --repeat and --chunk.
  void add(CLI::App& app);
};

struct DecodeResult {
  int depth = 0;
  cache::KvSpec spec;
  double prefill_tok_s = 0;     // 0 unless filled by a prompt
  std::vector<double> samples;  // tokens a second
  uint64_t kv_bytes = 0, kv_bytes_full = 0, peak_bytes = 0;
  std::vector<ops::Choice> choices;  // of the cache's kernels

  double tok_s() const;
  double ms() const;  // of one token
};

/// One result a setting, after an interrupt perhaps fewer or without samples. Every token is the model's own last answer. Throws Error when
/// logits are not finite.
std::vector<DecodeResult> measure_decode(const model::Transformer& model, std::span<const cache::KvSpec> specs, int depth,
                                         const DecodeSetup& setup);

/// Prefill of a prompt of random tokens into an empty cache; after an interrupt as above.
struct PrefillResult {
  int tokens = 0;
  cache::KvSpec spec;
  std::vector<double> samples;  // tokens a second
};
std::vector<PrefillResult> measure_prefill(const model::Transformer& model, std::span<const cache::KvSpec> specs, int tokens,
                                           const DecodeSetup& setup);

/// The fields of a result that every benchmark of decoding prints.
Json to_json(const DecodeResult& result);

}  // namespace tersor::cli
