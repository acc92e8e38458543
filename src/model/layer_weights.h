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
  ops::LinearWeight embedding;
  std::optional<ops::LinearWeight> own_head;  // unset: the embedding is the head too
  mx::array norm;                             // float32
  std::vector<LayerWeights> layers;

  const ops::LinearWeight& head() const { return own_head ? *own_head : embedding; }
  /// Every weight matrix in the order of use, the embedding last.
  std::vector<ops::LinearWeight*> linears();
  uint64_t bytes() const;
};

/// Moves the weights out of `data` and evaluates them. Throws Error naming the tensor that is missing or does not fit the configuration.
Weights take_weights(ModelData& data);
/// The type of activations on a GPU: that of the scales, or of dense weights, where every weight and the model's activation function have
/// kernels for it; else float32.
mx::Dtype gpu_activations(Weights& weights, Activation activation, ops::Policy policy);
/// On a GPU: weights lie where the device allocates, so that no step moves them again. Of float32 activations: scales, biases and dense
/// matrices in float32; else quantised weights are packed, those that run together in one piece, each original going as its copy is made.
void move_to_gpu(Weights& weights, mx::Dtype activations);
/// Packs every weight for this precision that loading has not packed already; each original is released as soon as its copy is made.
void pack_weights(Weights& weights, ops::Precision precision);

}  // namespace tersor::model
