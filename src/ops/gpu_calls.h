// What graph nodes hand to a GPU plug-in besides their arrays (kv_calls.h has those of the caches).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/linear_inputs.h"

namespace tersor::ops {

/// Inputs: x, (norm,) (add: residual,) then of each weight its arrays. Outputs: one a weight, or one of a pair; of x's type or float.
struct GpuLinearCall {
  LinearKind kind = LinearKind::plain;
  std::optional<float> norm_eps;
  std::vector<WeightFormat> formats;
};
/// Inputs: attended, residual, o's arrays, norm, the arrays of gate, up and down. Output: like residual.
struct GpuFeedForwardCall {
  float norm_eps;
  std::vector<WeightFormat> formats;
};
/// Inputs: q, k, inv_freq, (q_norm), (k_norm). Outputs: q, k.
struct GpuRopeCall {
  int head_dim;
  bool q_norm, k_norm;
  float scale, eps;
  int64_t position;
};
/// Weights with equal bits, groups and columns that lie in one piece of memory, strip after strip or row by row (kernels/cuda/linear.h).
/// Their arrays are evaluated and contiguous; scales and biases are of one type.
struct GpuPackCall {
  std::vector<const LinearWeight*> weights;
  bool paired = false;
  Dtype scale_type = Dtype::f16;  // as stored: that of the scales, or f32
};
struct GpuPacked {
  std::shared_ptr<const uint8_t> data;
  std::vector<size_t> offsets;  // of each weight; a pair's are zero
  size_t bytes = 0;
};

}  // namespace tersor::ops
