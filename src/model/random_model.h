// Models of random weights, made from a configuration alone: for measurements of speed and memory, where what the weights say does not
// matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/weight_type.h"
#include "tersor/model.h"

namespace tersor::model {

/// A matrix [out, in] of numbers that are spread evenly around 0 with variance 1 / in, so that products keep the size of their inputs.
/// Codes and scales are made as they are stored; there is no float matrix. The same seed gives the same matrix on every machine.
/// Throws Error when groups do not divide rows.
ops::LinearWeight random_linear(int out, int in, const WeightType& type, uint64_t seed);

/// Bytes of all that random_model makes.
uint64_t weight_bytes(const Config& config, const WeightType& type);

/// All that a configuration needs except a tokenizer. pack: as in load(). Throws Error, starting with `name`, when the weights do not fit
/// the memory there is or the configuration is impossible.
ModelData random_model(const std::string& name, const Config& config, const WeightType& type, uint64_t seed,
                       std::optional<ops::Precision> pack = {});

}  // namespace tersor::model
