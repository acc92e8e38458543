// Decode attention as a model sees it: a chain of 32 calls inside MLX, launch costs included, compressed caches against MLX's own fp16
// attention in the same process. Every call of a chain reads a cache that the call before did not (cold L2). One JSON line a measurement.
#include <mlx/mlx.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tersor/cache.h"

namespace {

namespace mx = mlx::core;
using namespace tersor;

constexpr int kChain = 32;

struct Shape {
  int batch, kv_heads, group, dim, tokens;
};

double median_us(const std::function<void()>& body, int repeats = 23) {
  std::vector<double> times;
  for (int r = 0; r < repeats; ++r) {
    mx::synchronize();
    const auto begin = std::chrono::steady_clock::now();
    body();
    mx::synchronize();
    if (r >= 3) times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / kChain;
}

cache::LayerCache filled(const std::string& name, const Shape& s) {
  const auto spec = cache::KvSpec::parse(name);
  cache::LayerCache layer(spec.keys, spec.values, spec.window, spec.sinks, {s.batch, s.kv_heads, s.dim, s.dim}, Dtype::f16,
                          ops::Policy::automatic);
  layer.reserve(s.tokens + 64);
  const int chunk = std::max(1, std::min(s.tokens, 65536 / s.batch));
  for (int done = 0; done < s.tokens; done += chunk) {
    const mx::Shape size{s.batch, std::min(chunk, s.tokens - done), s.kv_heads * s.dim};
    layer.append(mx::astype(mx::random::normal(size), mx::float16), mx::astype(mx::random::normal(size), mx::float16));
    mx::eval(layer.arrays());
  }
  return layer;
}

void report(const std::string& what, const Shape& s, double us, double bytes) {
  std::printf(
      "{\"bench\": \"attention in mlx, chain of %d\", \"what\": \"%s\", \"batch\": %d, \"kv_heads\": %d, \"group\": %d, \"dim\": %d, "
      "\"tokens\": %d, \"us\": %.2f, \"tb_s\": %.2f}\n",
      kChain, what.c_str(), s.batch, s.kv_heads, s.group, s.dim, s.tokens, us, bytes / us / 1e6);
  std::fflush(stdout);
}

void bench_sdpa(const Shape& s) {
  const double bytes = 4.0 * s.batch * s.kv_heads * s.tokens * s.dim;
  const int sets = bytes > 2e9 ? 1 : bytes > 5e8 ? 2 : 4;
  std::vector<mx::array> keys, values;
  for (int i = 0; i < sets; ++i)
    for (auto* list : {&keys, &values}) {
      list->push_back(mx::astype(mx::random::normal({s.batch, s.kv_heads, s.tokens, s.dim}), mx::float16));
      mx::eval(list->back());
    }
  const mx::array q = mx::astype(mx::random::normal({s.batch, s.kv_heads * s.group, 1, s.dim}), mx::float16);
  const float scale = 1 / std::sqrt(static_cast<float>(s.dim));
  const double us = median_us([&] {
    mx::array x = q;
    for (int i = 0; i < kChain; ++i) x = mx::fast::scaled_dot_product_attention(x, keys[i % sets], values[i % sets], scale);
    mx::eval(x);
  });
  report("mlx fp16 sdpa", s, us, bytes);
}

void bench_cache(const std::string& name, const Shape& s) {
  std::vector<cache::LayerCache> layers;
  layers.push_back(filled(name, s));
  const double bytes = static_cast<double>(layers[0].bytes());
  const int sets = bytes > 8e8 ? 1 : static_cast<int>(std::clamp(2e8 / bytes + 1, 2.0, 32.0));
  for (int i = 1; i < sets; ++i) layers.push_back(layers[0].copy());
  const mx::array q = mx::astype(mx::random::normal({s.batch, s.kv_heads * s.group, 1, s.dim}), mx::float16);
  mx::eval(q);
  const double us = median_us([&] {
    mx::array x = q;
    for (int i = 0; i < kChain; ++i) x = layers[i % sets].attend(x);
    mx::eval(x);
  });
  report(name + " (" + layers[0].choices()[1].kernel + ")", s, us, bytes);
  const mx::array k = mx::astype(mx::random::normal({s.batch, 1, s.kv_heads * s.dim}), mx::float16);
  mx::eval(k);
  const double both = median_us([&] {
    mx::array x = q;
    for (int i = 0; i < kChain; ++i) layers[i % sets].append(k, k), x = layers[i % sets].attend(x);
    mx::eval(x);
    for (auto& layer : layers) layer.trim(kChain / sets + (kChain % sets ? 1 : 0) > 0 ? layer.tokens() - s.tokens : 0);
  });
  report(name + " append and attend", s, both, bytes);
}

}  // namespace

int main() {
  mx::random::seed(1);
  const std::vector<std::string> codecs{"turboquant:4", "turboquant:3", "turboquant:2", "affine:4", "full"};
  for (const Shape& s : {Shape{1, 8, 4, 128, 2048}, Shape{1, 8, 4, 128, 8192}, Shape{1, 8, 4, 128, 32768}, Shape{1, 8, 4, 128, 131072},
                         Shape{8, 8, 4, 128, 131072}, Shape{64, 8, 4, 128, 4096}, Shape{1, 4, 3, 256, 32768}, Shape{8, 8, 4, 64, 131072},
                         Shape{8, 8, 8, 128, 131072}, Shape{1, 3, 3, 64, 8192}}) {
    bench_sdpa(s);
    for (const auto& codec : codecs)
      if (codec == "turboquant:4" || (s.dim == 128 && s.group == 4 && s.batch < 64)) bench_cache(codec, s);
    mx::clear_cache();
  }
  return 0;
}
