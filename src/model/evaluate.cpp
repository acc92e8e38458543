#include <mlx/transforms.h>

#include <algorithm>
#include <string>

#include "model/fidelity.h"

namespace tersor::model {
namespace {

// One setting under test: its cache and what has been seen of it so far.
struct Arm {
  cache::KvCache cache;
  FidelityMeter meter;
};

std::span<const float> values(const mx::array& logits) { return {logits.data<float>(), logits.size()}; }

mx::array run(const Transformer& model, std::span<const int32_t> tokens, cache::KvCache& cache) {
  mx::array logits = model.forward(tokens, cache, false);
  mx::eval(logits);
  cache.eval();
  return logits;
}

// The token that follows each of [begin, begin + count); -1 after the last one.
std::vector<int32_t> targets_of(std::span<const int32_t> tokens, size_t begin, size_t count) {
  std::vector<int32_t> targets(count, -1);
  for (size_t i = 0; i < count && begin + i + 1 < tokens.size(); ++i) targets[i] = tokens[begin + i + 1];
  return targets;
}

void check(const Transformer& model, std::span<const int32_t> tokens, int chunk) {
  if (tokens.size() < 2) throw Error("nothing to evaluate: give a text of at least two tokens");
  if (chunk < 1) throw Error("evaluation in chunks of " + std::to_string(chunk) + " tokens: give 1 or more");
  if (static_cast<int64_t>(tokens.size()) > model.config().context)
    throw Error(std::to_string(tokens.size()) + " tokens do not fit the model's context of " + std::to_string(model.config().context) +
                ": evaluate a shorter text");
}

Evaluation summarise(const Arm& arm, const cache::KvSpec& spec, uint64_t bytes_full) {
  Evaluation e;
  e.fidelity = arm.meter.result();
  e.spec = spec;
  e.kv_bytes = arm.cache.bytes();
  e.kv_bytes_full = bytes_full;
  e.tokens = arm.cache.tokens();
  e.layers = arm.cache.report();
  return e;
}

}  // namespace

std::vector<Evaluation> evaluate(const Transformer& model, std::span<const int32_t> tokens, std::span<const cache::KvSpec> specs, int chunk,
                                 Dtype full_dtype, const std::function<void(int64_t done, int64_t total)>& progress,
                                 const std::function<bool()>& stop_requested, std::span<const cache::ModelCalibration> calibrations) {
  check(model, tokens, chunk);
  const int64_t total = static_cast<int64_t>(tokens.size());
  cache::KvCache full = model.make_cache({}, full_dtype);
  full.reserve(total);
  std::vector<Arm> arms;
  for (size_t i = 0; i < specs.size(); ++i) {
    arms.push_back({model.make_cache(specs[i], full_dtype, calibrations.empty() ? cache::ModelCalibration{} : calibrations[i]), {}});
    arms.back().cache.reserve(total);
  }
  for (size_t done = 0; done < tokens.size();) {
    const auto part = tokens.subspan(done, std::min(tokens.size() - done, static_cast<size_t>(chunk)));
    const auto targets = targets_of(tokens, done, part.size());
    const mx::array reference = run(model, part, full);
    for (auto& arm : arms) arm.meter.add(values(reference), values(run(model, part, arm.cache)), targets);
    done += part.size();
    if (progress) progress(static_cast<int64_t>(done), total);
    if (stop_requested && stop_requested()) break;
  }
  std::vector<Evaluation> results;
  for (size_t i = 0; i < arms.size(); ++i) results.push_back(summarise(arms[i], specs[i], full.bytes()));
  return results;
}

}  // namespace tersor::model
