// Options that several commands share, and the values they stand for.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/calibrations.h"
#include "tersor/model.h"

namespace tersor::cli {

/// Validators with a message that states the range; NaN is in none.
CLI::Validator whole(int64_t low, int64_t high);
CLI::Validator real(double low, double high);
/// Refuses an empty file name.
CLI::Validator file_name();
/// An option of whole numbers separated by commas, none of them left out; it may be repeated.
CLI::Option* add_whole_list(CLI::App& app, const std::string& name, std::vector<int>& to, int64_t low, int64_t high,
                            const std::string& description);

inline constexpr int64_t kMostTokens = 1 << 24;
inline constexpr int64_t kMostChunk = 1 << 16;

/// How a model computes, wherever its weights come from.
struct ComputeOptions {
  std::string kernels = "auto", precision = "int16", dtype = "f16";
  CLI::Option* dtype_option = nullptr;

  void add(CLI::App& app, bool with_dtype = true);
  /// Throws Error for an unknown value; to be called before anything slow.
  void check() const;
  ops::Policy policy() const { return ops::parse_policy(kernels); }
  ops::Precision precision_class() const { return ops::parse_precision(precision); }
  Dtype full_dtype() const { return parse_dtype(dtype); }
  /// The same where the command line names it.
  std::optional<Dtype> given_dtype() const;
};

struct ModelOptions : ComputeOptions {
  std::string path;

  void add(CLI::App& app, bool with_dtype = true);
  /// Throws Error for an unknown value or a path that does not exist; to be called before anything slow.
  void check() const;
  /// Loads the model, with progress on a terminal.
  model::Transformer load() const;
};

/// A setting as users name it: "turboquant:4", "KEYS/VALUES" such as "turboquant:6/turboquant:4,window=32", or "recommended".
cache::KvSpec parse_kv(const std::string& text);
/// The same for a report; parse_kv(kv_name(s)) gives s.
std::string kv_name(const cache::KvSpec& spec);

/// --calibration, which may be repeated.
void add_calibration(CLI::App& app, std::vector<std::string>& files);

/// "keys" or "values"; throws Error for anything else.
codec::Role parse_role(const std::string& text);

struct KvOptions {
  std::vector<std::string> kv, calibration;
  std::string keys, values;
  std::vector<int> skip;
  std::optional<int> window, sinks;

  /// `several`: --kv may be repeated.
  void add(CLI::App& app, bool several, const std::string& default_text);
  /// --kv-keys and --kv-values, for commands with one setting.
  void add_halves(CLI::App& app);
  bool given() const { return !kv.empty() || !keys.empty() || !values.empty() || window || sinks || !skip.empty(); }
  /// The setting, or `otherwise` where none was given, with --window, --sinks and --skip-layers put over it.
  cache::KvSpec spec(const cache::KvSpec& otherwise) const;
  std::vector<cache::KvSpec> specs(const std::vector<cache::KvSpec>& otherwise) const;
  /// The files of --calibration; of this model, where one is given.
  Calibrations calibrations(const cache::Identity* model) const { return Calibrations(calibration, model); }

 private:
  cache::KvSpec with_overrides(cache::KvSpec spec) const;
};

struct GenerationOptions {
  model::Sampling sampling;
  int max_tokens = 256, chunk = 512;
  std::vector<std::string> stop;
  bool ignore_end = false;

  void add(CLI::App& app);
  model::GenerateOptions make() const;
};

void add_json(CLI::App& app, bool& json);

}  // namespace tersor::cli
