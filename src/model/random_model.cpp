#include "model/random_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "model/arrays.h"
#include "model/device_memory.h"
#include "model/weight_plan.h"

namespace tersor::model {
namespace {

// The i-th number of a stream (SplitMix64): any part of it can be made on its own.
uint64_t random_word(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

mx::Dtype mlx_type(Dtype type) { return type == Dtype::f32 ? mx::float32 : type == Dtype::f16 ? mx::float16 : mx::bfloat16; }

// Calls f(first, last) for pieces of [0, count) words of a stream, on all threads.
void for_words(uint64_t count, const std::function<void(uint64_t, uint64_t)>& f) {
  constexpr uint64_t kWords = 4096;
  for_row_pieces(static_cast<int>((count + kWords - 1) / kWords), kWords * sizeof(uint64_t), [&](int first, int last) {
    f(static_cast<uint64_t>(first) * kWords, std::min(count, static_cast<uint64_t>(last) * kWords));
  });
}

mx::array random_codes(mx::Shape shape, uint64_t seed) {
  mx::array codes = allocate(std::move(shape), mx::uint32);
  auto* const to = reinterpret_cast<uint32_t*>(bytes_of(codes));
  const uint64_t size = codes.size();
  for_words((size + 1) / 2, [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) {
      const uint64_t word = random_word(seed, i);
      to[2 * i] = static_cast<uint32_t>(word);
      if (2 * i + 1 < size) to[2 * i + 1] = static_cast<uint32_t>(word >> 32);
    }
  });
  return codes;
}

constexpr int kLevels = 4096;

// Numbers drawn from value(0) ... value(1), four to a word of the stream: two arrays of one seed take corresponding levels.
template <class Number>
void draw(Number* to, uint64_t size, uint64_t seed, const std::array<Number, kLevels>& levels) {
  for_words((size + 3) / 4, [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) {
      const uint64_t word = random_word(seed, i);
      for (uint64_t j = 0; j < std::min<uint64_t>(4, size - 4 * i); ++j) to[4 * i + j] = levels[word >> (16 * j) & (kLevels - 1)];
    }
  });
}

mx::array random_numbers(mx::Shape shape, Dtype type, uint64_t seed, float low, float high) {
  mx::array numbers = allocate(std::move(shape), mlx_type(type));
  const auto fill = [&]<class Number>(Number* to, auto&& convert) {
    std::array<Number, kLevels> levels;
    for (int i = 0; i < kLevels; ++i)
      levels[static_cast<size_t>(i)] = convert(low + (high - low) * (static_cast<float>(i) + 0.5f) / static_cast<float>(kLevels));
    draw(to, numbers.size(), seed, levels);
  };
  if (type == Dtype::f32)
    fill(reinterpret_cast<float*>(bytes_of(numbers)), [](float x) { return x; });
  else
    fill(reinterpret_cast<uint16_t*>(bytes_of(numbers)), type == Dtype::f16 ? float_to_half : float_to_bfloat);
  return numbers;
}

void make_tensor(ModelData& data, const TensorSpec& spec, const WeightType& type, uint64_t seed) {
  if (!spec.cols) {
    data.vectors.emplace(spec.name(), random_numbers({spec.rows}, Dtype::f32, seed, 0.8f, 1.2f));
    return;
  }
  ops::LinearWeight weight = random_linear(spec.rows, spec.cols, type, seed);
  if (spec.bias) weight.bias = random_numbers({spec.rows}, Dtype::f32, random_word(seed, 3), -0.1f, 0.1f);
  data.linears.emplace(spec.name(), std::move(weight));
}

uint64_t bytes_of_tensor(const TensorSpec& spec, const WeightType& type) {
  const auto rows = static_cast<uint64_t>(spec.rows);
  return spec.cols ? type.bytes(spec.rows, spec.cols) + (spec.bias ? 4 * rows : 0) : 4 * rows;
}

}  // namespace

WeightType WeightType::parse(std::string_view text) {
  WeightType type;
  if (text == "bf16" || text == "f16") return type.dtype = parse_dtype(text), type;
  const std::string advice =
      ": give affine:4, affine:8,group=64, bf16 or f16; affine takes 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128";
  if (!text.starts_with("affine:")) throw Error("the weight format \"" + std::string(text) + "\" is unknown" + advice);
  const codec::Spec spec = codec::Spec::parse(text);
  if (spec.bits < 2 || spec.bits > 8 || spec.bits == 7 || (spec.group != 32 && spec.group != 64 && spec.group != 128))
    throw Error("the weight format \"" + std::string(text) + "\" is not supported" + advice);
  type.bits = spec.bits, type.group = spec.group;
  return type;
}

std::string WeightType::str() const {
  return bits ? "affine:" + std::to_string(bits) + ",group=" + std::to_string(group) : std::string(name_of(dtype));
}

uint64_t WeightType::bytes(int out, int in) const {
  const uint64_t numbers = static_cast<uint64_t>(out) * static_cast<uint64_t>(in);
  if (!bits) return numbers * size_of(dtype);
  return numbers * static_cast<uint64_t>(bits) / 8 + 2 * size_of(dtype) * numbers / static_cast<uint64_t>(group);
}

ops::LinearWeight random_linear(int out, int in, const WeightType& type, uint64_t seed) {
  const float half_width = std::sqrt(3.0f / static_cast<float>(in));  // even over +-w: variance w^2 / 3
  if (!type.bits) return {random_numbers({out, in}, type.dtype, random_word(seed, 0), -half_width, half_width), {}, {}, 0, 0, {}};
  if (in % type.group)
    throw Error("weights of " + type.str() + ": groups of " + std::to_string(type.group) + " do not divide rows of " + std::to_string(in) +
                "; use smaller groups");
  // A group's scales differ by up to 2; codes lie evenly around 0 since bias = -scale * (largest code) / 2.
  const float largest = static_cast<float>((1 << type.bits) - 1), scale = 2 * half_width / largest;
  const mx::Shape groups{out, in / type.group};
  const float low = scale * 2 / 3, high = scale * 4 / 3;
  return {random_codes({out, in / 32 * type.bits}, random_word(seed, 0)),
          random_numbers(groups, type.dtype, random_word(seed, 1), low, high),
          random_numbers(groups, type.dtype, random_word(seed, 1), -low * largest / 2, -high * largest / 2),
          type.bits,
          type.group,
          {}};
}

uint64_t weight_bytes(const Config& config, const WeightType& type) {
  uint64_t sum = 0;
  for_each_tensor(config, [&](const TensorSpec& spec) { sum += bytes_of_tensor(spec, type); });
  return sum;
}

ModelData random_model(const std::string& name, const Config& config, const WeightType& type, uint64_t seed, bool pack) {
  LoadPlan plan;
  plan.data.config = config;
  plan.data.format = kRandomFormat;
  for_each_tensor(config, [&](const TensorSpec& spec) {
    const uint64_t own_seed = random_word(seed, plan.jobs.size());
    plan.jobs.push_back({bytes_of_tensor(spec, type), [=](ModelData& data) { make_tensor(data, spec, type, own_seed); }});
  });
  check_config(config, plan.jobs.size(), name);
  const std::string what = name + ": weights of " + type.str() + " take " + human_bytes(plan.bytes());
  for (const auto require : {require_memory, require_device_memory})
    require(plan.bytes(), what, "use a smaller shape or weights of fewer bits");
  return run_plan(std::move(plan), pack);
}

}  // namespace tersor::model
