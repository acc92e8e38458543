#include "model/rope_frequencies.h"

#include <cmath>
#include <numbers>
#include <string>

namespace tersor::model {
namespace {

// Long waves are slowed down by `factor`, short ones stay, and those between are blended.
double scale_llama3(double frequency, const Config::Llama3Scaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = scaling.original_context;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

void check(const Config& config) {
  if (config.rotary_dims < 2 || config.rotary_dims % 2 || config.rotary_dims > config.head_dim)
    throw Error("model configuration: " + std::to_string(config.rotary_dims) +
                " rotary dimensions: give an even number up to the head size " + std::to_string(config.head_dim));
  if (!(config.rope_theta > 0) || !(config.linear_rope_factor > 0))
    throw Error("model configuration: rope theta and the linear rope factor must be above 0");
  const size_t pairs = static_cast<size_t>(config.rotary_dims) / 2;
  if (!config.rope_freq_factors.empty() && config.rope_freq_factors.size() != pairs)
    throw Error("model configuration: " + std::to_string(config.rope_freq_factors.size()) + " rope frequency factors for " +
                std::to_string(pairs) + " pairs of dimensions: the file does not fit its own head size");
  for (float factor : config.rope_freq_factors)
    if (!(factor > 0)) throw Error("model configuration: a rope frequency factor is not above 0: the file is damaged");
  if (const auto& scaling = config.llama3_scaling)
    if (!(scaling->factor > 0 && scaling->low_freq_factor > 0 && scaling->high_freq_factor > scaling->low_freq_factor &&
          scaling->original_context > 0))
      throw Error("model configuration: llama3 rope scaling needs factor > 0, 0 < low_freq_factor < high_freq_factor and a context > 0");
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const Config& config) {
  check(config);
  std::vector<float> frequencies(static_cast<size_t>(config.rotary_dims) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(static_cast<double>(config.rope_theta), -2.0 * static_cast<double>(i) / config.rotary_dims);
    if (config.llama3_scaling) frequency = scale_llama3(frequency, *config.llama3_scaling);
    if (!config.rope_freq_factors.empty()) frequency /= config.rope_freq_factors[i];
    frequencies[i] = static_cast<float>(frequency / config.linear_rope_factor);
  }
  return frequencies;
}

}  // namespace tersor::model
