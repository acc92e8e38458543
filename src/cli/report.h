// Caches, layers, kernels and generations as JSON and as lines of text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/output.h"
#include "tersor/model.h"

namespace tersor::cli {

/// How many bytes MLX's allocator held at most and holds now.
struct Memory {
  uint64_t peak = 0, active = 0;
};
Memory memory_now();

/// name, keys, values, window, sinks, skip.
Json to_json(const cache::KvSpec& spec);
/// The above, and tokens, bytes, bytes_full, ratio.
Json to_json(const cache::KvCache& cache);
Json to_json(std::span<const cache::LayerReport> layers);
Json to_json(std::span<const ops::Choice> choices);

/// Each distinct choice once, in order.
std::vector<ops::Choice> distinct(std::vector<ops::Choice> choices);
/// "1.2 MiB measured, 4.5 MiB in full precision (3.75x)"; a cache that is larger than full gets words for its ratio.
std::string against_full(const cache::KvCache& cache);
/// Layers that keep something else than what was asked for, otherwise than by request: "; 30 layers keep affine:4: REASON", or nothing.
std::string departures(std::span<const cache::LayerReport> layers);
/// "27 compressed, 3 in full precision by request (0, 1, 29)", and the departures.
std::string layer_summary(std::span<const cache::LayerReport> layers);
/// What `tersor generate` and `tersor chat` say after a reply.
std::string generation_report(const model::Generation& generation, const cache::KvCache& cache, const Memory& memory);

}  // namespace tersor::cli
