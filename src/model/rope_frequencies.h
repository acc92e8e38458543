// Angles of rotary position embeddings.
#pragma once

#include <vector>

#include "tersor/model.h"

namespace tersor::model {

/// Angle per position of every pair of dimensions: rotary_dims / 2 numbers, from theta, Llama 3's scaling, linear scaling
/// and the divisors a file may state. Throws Error when the configuration contradicts itself.
std::vector<float> rope_inverse_frequencies(const Config& config);

}  // namespace tersor::model
