#include "model/shapes.h"

#include <algorithm>

namespace tersor::model {
namespace {

enum class Head { tied, own };

// The numbers of a config.json; what a family has in common follows from its name.
struct Shape {
  const char* name;
  const char* family;
  int layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context;
  float rope_theta;
  float rope_factor;  // of llama3 scaling, 0: none
  Head head;
};

constexpr Shape kShapes[] = {
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5f, 0, Head::tied},
    {"smollm2-1.7b", "llama", 24, 2048, 8192, 32, 32, 64, 49152, 8192, 1.3e5f, 0, Head::tied},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5f, 32, Head::tied},
    {"llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5f, 32, Head::tied},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5f, 8, Head::own},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6f, 0, Head::tied},
    {"qwen2.5-3b", "qwen2", 36, 2048, 11008, 16, 2, 128, 151936, 32768, 1e6f, 0, Head::tied},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 131072, 1e6f, 0, Head::own},
    {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6f, 0, Head::tied},
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 40960, 1e6f, 0, Head::tied},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6f, 0, Head::own},
    {"mistral-7b", "mistral", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e6f, 0, Head::own},  // v0.3
};

Config config_of(const Shape& shape) {
  Config c;
  c.family = shape.family;
  c.layers = shape.layers, c.hidden = shape.hidden, c.intermediate = shape.intermediate;
  c.heads = shape.heads, c.kv_heads = shape.kv_heads, c.head_dim = c.rotary_dims = shape.head_dim;
  c.vocab = shape.vocab, c.context = shape.context;
  c.rope_theta = shape.rope_theta;
  c.tied_head = shape.head == Head::tied;
  if (shape.rope_factor > 0) c.llama3_scaling = {shape.rope_factor, 1.0f, 4.0f, 8192};
  c.qkv_bias = c.family == "qwen2";
  c.qk_norm = c.family == "qwen3";
  c.norm_eps = c.family.starts_with("qwen") ? 1e-6f : 1e-5f;
  return c;
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const auto& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Config config_of_shape(std::string_view name) {
  const auto* found = std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& shape) { return name == shape.name; });
  if (found != std::end(kShapes)) return config_of(*found);
  std::string known;
  for (const auto& shape : kShapes) known += std::string(known.empty() ? "" : ", ") + shape.name;
  throw Error("the shape \"" + std::string(name) + "\" is unknown: use one of " + known);
}

}  // namespace tersor::model
