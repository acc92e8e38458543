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

// Mean square of e4m3 codes whose highest exponent bit is 0: 8 exponents up to 2^0, 8 mantissas each, the lowest exponent subnormal.
double mean_square_of_small_e4m3() {
  double sum = 0;
  for (int code = 0; code < 64; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    const double value = std::ldexp(exponent ? 8 + mantissa : mantissa, std::max(exponent, 1) - 10);
    sum += value * value;
  }
  return sum / 64;
}

constexpr uint32_t kSmallE4m3 = 0xbfbfbfbf;  // without the highest exponent bit no code is NaN
constexpr double kMeanSquareE2m1 = (0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8;

// Scales are powers of two: of the two around the wanted size, each as often as makes the variance right.
ops::LinearWeight random_mx(int out, int in, const WeightType& type, uint64_t seed) {
  const bool wide = type.coding == Coding::mxfp8;
  mx::array codes = random_codes({out, in / 32 * type.bits}, random_word(seed, 0));
  if (wide) {
    auto* const words = reinterpret_cast<uint32_t*>(bytes_of(codes));
    std::transform(words, words + codes.size(), words, [](uint32_t word) { return word & kSmallE4m3; });
  }
  const double square = 1 / (in * (wide ? mean_square_of_small_e4m3() : kMeanSquareE2m1));
  const int exponent = static_cast<int>(std::floor(std::log2(square) / 2));
  const double upper = (square / std::exp2(2 * exponent) - 1) / 3;
  std::array<uint8_t, kLevels> levels;
  for (int i = 0; i < kLevels; ++i) levels[static_cast<size_t>(i)] = static_cast<uint8_t>(127 + exponent + (i < upper * kLevels));
  mx::array scales = allocate({out, in / type.group}, mx::uint8);
  draw(reinterpret_cast<uint8_t*>(bytes_of(scales)), scales.size(), random_word(seed, 1), levels);
  ops::LinearWeight weight{std::move(codes), std::move(scales), {}, type.bits, type.group, {}};
  weight.coding = type.coding;
  return weight;
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

ops::LinearWeight random_linear(int out, int in, const WeightType& type, uint64_t seed) {
  const float deviation = 1 / std::sqrt(static_cast<float>(in));
  if (!type.bits) {
    const float width = deviation * std::sqrt(3.0f);  // even over +-width
    return {random_numbers({out, in}, type.dtype, random_word(seed, 0), -width, width), {}, {}, 0, 0, {}};
  }
  type.require_fit(in);
  if (type.coding != Coding::affine) return random_mx(out, in, type, seed);
  // Codes are even over 0 ... largest, and around 0 once -scale * largest / 2 is added. Groups have scales that differ by up to 2.
  const float largest = static_cast<float>((1 << type.bits) - 1), scale = deviation * std::sqrt(12 / (largest * (largest + 2)));
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

ModelData random_model(const std::string& name, const Config& config, const WeightType& type, uint64_t seed,
                       std::optional<ops::Precision> pack) {
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
