// The identity of a model's weights: cheap, deterministic and independent of the file format.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/digest.h"
#include "model/arrays.h"
#include "model/weight_plan.h"

namespace tersor::model {
namespace {

constexpr size_t kWholeBelow = 4096;  // smaller arrays are hashed whole
constexpr size_t kSamples = 16, kSampleBytes = 64;

void add_array(Digest& digest, std::string_view name, const mx::array& array) {
  digest.add(name);
  digest.add(dtype_name(array.dtype()));
  for (const auto dim : array.shape()) digest.add(std::to_string(dim));
  const auto* data = array.data<uint8_t>();
  const size_t size = array.nbytes();
  if (size < kWholeBelow) return digest.add(data, size);
  for (size_t i = 0; i < kSamples; ++i) digest.add(data + (size - kSampleBytes) / (kSamples - 1) * i, kSampleBytes);
}

// The shortest text that reads back as the same float, so that both formats agree.
std::string float_text(float value) {
  char text[32];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  return text;
}

}  // namespace

void WeightDigests::add_new(const std::map<std::string, ops::LinearWeight>& linears) {
  for (const auto& [name, linear] : linears) {
    if (linears_.contains(name)) continue;
    Digest digest;
    add_array(digest, name, linear.weight);
    digest.add(std::to_string(linear.bits));
    digest.add(std::to_string(linear.group));
    if (linear.coding != Coding::affine) digest.add(name_of(linear.coding));
    if (linear.scales) add_array(digest, "scales", *linear.scales);
    if (linear.biases) add_array(digest, "biases", *linear.biases);
    linears_.emplace(name, digest.str());
  }
}

std::string WeightDigests::str(const ModelData& data) const {
  Digest digest;
  for (const auto& [name, text] : linears_) {
    digest.add(text);
    if (const auto& bias = data.linears.at(name).bias) add_array(digest, name, *bias);
  }
  for (const auto& [name, vector] : data.vectors) add_array(digest, name, vector);
  return digest.str();
}

cache::Identity identity_of(const ModelData& data, const WeightDigests& digests) {
  const Config& c = data.config;
  return {
      {"family", c.family},
      {"layers", std::to_string(c.layers)},
      {"hidden", std::to_string(c.hidden)},
      {"heads", std::to_string(c.heads)},
      {"kv_heads", std::to_string(c.kv_heads)},
      {"head_dim", std::to_string(c.head_dim)},
      {"vocab", std::to_string(c.vocab)},
      {"rope_theta", float_text(c.rope_theta)},
      {"weights", digests.str(data)},
  };
}

}  // namespace tersor::model
