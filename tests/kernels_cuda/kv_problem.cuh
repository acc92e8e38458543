// Random attention problems and their results' error.
#pragma once

#include <tuple>

#include "kv_cases.cuh"

namespace tersor::kernels::cuda {

inline const std::vector<std::string> kTurbo = {"turboquant:1", "turboquant:2", "turboquant:3", "turboquant:4"};
inline const std::vector<std::string> kAffine = {"affine:2", "affine:4", "affine:8"};
/// Keys of 5 and 6 bits and the values that go with them.
inline const std::vector<std::pair<std::string, std::string>> kWide = {{"turboquant:5", "turboquant:4"},
                                                                       {"turboquant:5", "turboquant:5"},
                                                                       {"turboquant:6", "turboquant:4"},
                                                                       {"turboquant:6", "turboquant:5"},
                                                                       {"turboquant:6", "turboquant:6"}};
inline const std::vector<int> kDims = {64, 80, 96, 128, 256};

template <class T>
T pick(std::mt19937& rng, const std::vector<T>& from) {
  return from[rng() % from.size()];
}

// Relative error of a whole result: roundings of the types, and over codes what 15-bit queries and weights leave: every token's weight
// may be off by 2^-16 of the largest (times the peak's room), which adds up where one token outweighs hundreds.
inline double tolerance(const std::string& keys, Dtype type) { return (type == Dtype::bf16 ? 3e-3 : 5e-4) + (keys == "full" ? 0 : 1e-3); }

struct Problem {
  std::string keys, values;
  int dim = 128, kv_heads = 2, batch = 1, tokens = 300;
  Dtype type = Dtype::f16, full = Dtype::f16;
  int window = 0, sink_tokens = 0, slabs = 1;
  float spread = 1;
  AttendCase attend;
  std::string str() const {
    return keys + " / " + values + " D=" + std::to_string(dim) + " heads " + std::to_string(kv_heads) + "x" + std::to_string(attend.group) +
           " batch " + std::to_string(batch) + " tokens " + std::to_string(tokens) + " rows " + std::to_string(attend.rows) + " type " +
           std::to_string(static_cast<int>(type)) + " window " + std::to_string(window) + " sink tokens " + std::to_string(sink_tokens) +
           " slabs " + std::to_string(slabs) + " sliding " + std::to_string(attend.sliding_window) + " cap " +
           std::to_string(attend.soft_cap) + " causal " + std::to_string(attend.causal) + " sinks " + std::to_string(attend.sinks.size()) +
           " mask " + std::to_string(attend.mask.size());
  }
};

inline double run(std::mt19937& rng, const Problem& problem) {
  const Problem& c = problem;
  const LayerCodecs codecs(c.keys, c.values, c.dim, c.full);
  const size_t n = static_cast<size_t>(c.batch) * c.tokens * c.kv_heads * c.dim;
  const DeviceRows k(normal(rng, n, c.spread), c.batch, c.tokens, c.kv_heads, c.dim, c.type),
      v(normal(rng, n, 1, 0.2f), c.batch, c.tokens, c.kv_heads, c.dim, c.type);
  const int heads = c.kv_heads * c.attend.group;
  const DeviceRows q(normal(rng, static_cast<size_t>(c.batch) * c.attend.rows * heads * c.dim), c.batch, c.attend.rows, heads, c.dim,
                     c.type);
  const bool all_full = c.keys == "full";
  std::vector<std::unique_ptr<Slab>> slabs;
  std::vector<Read> reads;
  const int recent_first = std::max(0, c.tokens - c.attend.rows - c.window) / 16 * 16;
  if (c.sink_tokens) {
    slabs.push_back(std::make_unique<Slab>(codecs, true, c.batch, c.kv_heads, c.sink_tokens, 0));
    append(codecs, {slabs.back().get()}, k, v, 0, c.sink_tokens);
    reads.push_back({slabs.back().get()});
  }
  for (int i = 0, first = 0; i < c.slabs; ++i) {
    const int size = i + 1 == c.slabs ? c.tokens - first : std::min((c.tokens / c.slabs + 63) / 64 * 64, c.tokens - first);
    if (size <= 0) break;
    slabs.push_back(std::make_unique<Slab>(codecs, all_full, c.batch, c.kv_heads, size, first));
    append(codecs, {slabs.back().get()}, k, v, first, size);
    Read read{slabs.back().get()};
    if (c.sink_tokens) read.lo_abs = c.sink_tokens;
    if (c.window) read.hi_abs = recent_first, read.hi_rel = 1 - c.window;
    reads.push_back(read);
    first += size;
  }
  if (c.window) {
    slabs.push_back(std::make_unique<Slab>(codecs, true, c.batch, c.kv_heads, c.tokens - recent_first, recent_first));
    append(codecs, {slabs.back().get()}, k, v, recent_first, c.tokens - recent_first);
    Read read{slabs.back().get()};
    read.lo_abs = std::max(recent_first, c.sink_tokens), read.lo_rel = 1 - c.window;
    reads.push_back(read);
  }
  AttendCase attend_case = c.attend;
  attend_case.position = c.tokens - c.attend.rows;
  attend_case.scale = 1 / std::sqrt(static_cast<float>(c.dim));
  const auto got = attend(codecs, reads, q, attend_case, c.kv_heads);
  return relative_error(got, Oracle(codecs, reads).attend(q, attend_case, c.kv_heads));
}

inline Problem sample(std::mt19937& rng) {
  Problem p;
  const bool affine = rng() % 4 == 0;
  p.keys = pick(rng, affine ? kAffine : kTurbo), p.values = pick(rng, affine ? kAffine : kTurbo);
  if (rng() % 3 == 0) std::tie(p.keys, p.values) = pick(rng, kWide);
  if (rng() % 8 == 0) p.keys = p.values = "full";
  p.dim = pick(rng, kDims), p.kv_heads = pick<int>(rng, {1, 2, 3}), p.batch = pick<int>(rng, {1, 1, 2, 3});
  p.tokens = rng() % 2 ? pick<int>(rng, {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}) : 1 + static_cast<int>(rng() % 400);
  p.type = pick<Dtype>(rng, {Dtype::f16, Dtype::bf16, Dtype::f32}), p.full = pick<Dtype>(rng, {Dtype::f16, Dtype::bf16});
  p.attend.group = pick<int>(rng, {1, 2, 3, 4, 5, 8, 16});
  p.attend.rows = std::min(p.tokens, pick<int>(rng, {1, 1, 2, 3, 5, 8, 33}));
  if (p.keys != "full") {
    p.window = rng() % 3 == 0 ? 1 + static_cast<int>(rng() % 100) : 0;
    p.sink_tokens = rng() % 3 == 0 ? std::min(p.tokens, 1 + static_cast<int>(rng() % 20)) : 0;
  }
  p.slabs = pick<int>(rng, {1, 1, 2, 5});
  p.spread = pick<float>(rng, {1, 1, 4, 0.01f});
  if (rng() % 4 == 0) p.attend.sliding_window = 1 + static_cast<int>(rng() % 200);
  if (rng() % 4 == 0) p.attend.soft_cap = 20;
  if (rng() % 5 == 0) p.attend.causal = false;
  if (rng() % 4 == 0) p.attend.sinks = normal(rng, p.kv_heads * p.attend.group, 2);
  if (rng() % 4 == 0) {
    p.attend.positions = p.tokens;
    p.attend.mask = normal(rng, static_cast<size_t>(p.attend.rows) * p.tokens);
    for (float& x : p.attend.mask)
      if (rng() % 3 == 0) x = -INFINITY;
  }
  if (rng() % 3 == 0) p.attend.splits = 1 + static_cast<int>(rng() % 20);
  return p;
}

}  // namespace tersor::kernels::cuda
