// The weights of a model in the order in which the transformer uses them.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {

struct LayerWeights {
  mx::array input_norm, post_norm;          // float32
  std::optional<mx::array> q_norm, k_norm;  // float32, one head
  std::array<ops::LinearWeight, 3> qkv;     // q, k, v
  ops::LinearWeight o, gate, up, down;
};

struct Weights {
  ops::LinearWeight embedding, head;  // head shares the embedding's arrays when tied
  mx::array norm;                     // float32
  std::vector<LayerWeights> layers;
  uint64_t bytes = 0;  // of all arrays, shared ones once
};

/// Moves the weights out of `data` and evaluates them. Throws Error naming the tensor that is missing or does not fit the configuration.
Weights take_weights(ModelData& data);
/// Packs every quantised weight for the int16 kernels, in the order of use; each original is released as soon as its copy is made.
void pack_weights(Weights& weights);

}  // namespace tersor::model
