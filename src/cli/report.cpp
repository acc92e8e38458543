#include "cli/report.h"

#include <mlx/memory.h>

#include <algorithm>

#include "cache/kv_size.h"
#include "cli/options.h"

namespace tersor::cli {
namespace {

bool same(const ops::Choice& a, const ops::Choice& b) { return a.op == b.op && a.problem == b.problem && a.kernel == b.kernel; }

bool full(const cache::LayerReport& layer) { return layer.keys.starts_with("full") && layer.values.starts_with("full"); }

bool as_requested(const cache::LayerReport& layer) { return layer.keys == layer.keys_requested && layer.values == layer.values_requested; }

bool skipped(const cache::LayerReport& layer) { return !as_requested(layer) && full(layer) && layer.reason == "skipped by request"; }

double ratio(uint64_t full, uint64_t bytes) { return bytes ? static_cast<double>(full) / static_cast<double>(bytes) : 0; }

}  // namespace

Memory memory_now() { return {mlx::core::get_peak_memory(), mlx::core::get_active_memory()}; }

Json to_json(const cache::KvSpec& spec) {
  return {{"name", kv_name(spec)}, {"keys", spec.keys.str()}, {"values", spec.values.str()},
          {"window", spec.window}, {"sinks", spec.sinks},     {"skip", spec.skip}};
}

Json to_json(const cache::KvCache& cache) {
  Json json = to_json(cache.spec());
  json["tokens"] = cache.tokens();
  json["bytes"] = cache.bytes();
  json["bytes_full"] = cache.bytes_full();
  json["ratio"] = ratio(cache.bytes_full(), cache.bytes());
  return json;
}

Json to_json(std::span<const cache::LayerReport> layers) {
  Json list = Json::array();
  for (const auto& layer : layers)
    list.push_back({{"layer", layer.layer},
                    {"keys_requested", layer.keys_requested},
                    {"values_requested", layer.values_requested},
                    {"keys", layer.keys},
                    {"values", layer.values},
                    {"tokens", layer.tokens},
                    {"bytes", layer.bytes},
                    {"reason", layer.reason}});
  return list;
}

Json to_json(std::span<const ops::Choice> choices) {
  Json list = Json::array();
  for (const auto& choice : choices)
    list.push_back(
        {{"op", choice.op}, {"problem", choice.problem}, {"kernel", choice.kernel}, {"fast", choice.fast}, {"reason", choice.reason}});
  return list;
}

std::vector<ops::Choice> distinct(std::vector<ops::Choice> choices) {
  std::vector<ops::Choice> list;
  for (auto& choice : choices)
    if (std::none_of(list.begin(), list.end(), [&](const ops::Choice& seen) { return same(seen, choice); }))
      list.push_back(std::move(choice));
  return list;
}

std::string against_full(const cache::KvCache& cache) {
  const uint64_t bytes = cache.bytes(), bytes_full = cache.bytes_full();
  std::string relation = fixed(ratio(bytes_full, bytes), 2) + "x";
  if (bytes > bytes_full) {
    const cache::LayerShape shape = cache.layers() ? cache.layer(0).shape() : cache::LayerShape{};
    const auto codes = [&](const codec::Spec& keys, const codec::Spec& values) {
      return cache::expected_bytes({keys, values, 0, 0, {}}, 1, shape, cache.full_dtype(), 1 << 20);
    };
    relation = codes(cache.spec().keys, cache.spec().values) > codes({}, {})
                   ? "larger than full: so are the codes of this setting, at this head size"
                   : "larger than full: blocks and windows are not filled yet";
  }
  return human_bytes(bytes) + " measured, " + human_bytes(bytes_full) + " in full precision (" + relation + ")";
}

std::string departures(std::span<const cache::LayerReport> layers) {
  std::vector<std::pair<std::string, size_t>> kinds;
  for (const auto& layer : layers) {
    if (as_requested(layer) || skipped(layer)) continue;
    const std::string kind = layer.keys + (layer.values == layer.keys ? "" : "/" + layer.values) + ": " + layer.reason;
    if (kinds.empty() || kinds.back().first != kind) kinds.emplace_back(kind, 0);
    ++kinds.back().second;
  }
  std::string text;
  for (const auto& [kind, count] : kinds) text += "; " + std::to_string(count) + (count == 1 ? " layer keeps " : " layers keep ") + kind;
  return text;
}

std::string layer_summary(std::span<const cache::LayerReport> layers) {
  size_t compressed = 0, whole = 0, kept_count = 0;
  std::string kept;
  for (const auto& layer : layers) {
    if (skipped(layer))
      kept += (kept_count++ ? ", " : "") + std::to_string(layer.layer);
    else
      ++(full(layer) ? whole : compressed);
  }
  std::string text;
  const auto part = [&](size_t count, const std::string& words) {
    if (count) text += (text.empty() ? "" : ", ") + std::to_string(count) + words;
  };
  part(compressed, " compressed");
  part(whole, " in full precision");
  part(kept_count, " in full precision by request (" + kept + ")");
  return text + departures(layers);
}

std::string generation_report(const model::Generation& generation, const cache::KvCache& cache, const Memory& memory) {
  const auto layers = cache.report();
  return "prompt " + std::to_string(generation.prompt_tokens) + " tokens at " + fixed(generation.prefill_tok_s(), 1) +
         " tok/s; generated " + std::to_string(generation.tokens.size()) + " at " + fixed(generation.decode_tok_s(), 1) + " tok/s (" +
         generation.stop_reason + ")\n" + "cache " + kv_name(cache.spec()) + ", " + std::to_string(cache.tokens()) +
         " tokens: " + against_full(cache) + "\n" + "layers: " + layer_summary(layers) + "; MLX allocator peak " + human_bytes(memory.peak);
}

}  // namespace tersor::cli
