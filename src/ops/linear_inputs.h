// Weights of linear layers as inputs of a graph node: how they are listed, and what the kernels see of them.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cpu/linear.h"
#include "ops/linear_run.h"
#include "tersor/ops.h"

namespace tersor::ops {

/// The parts of a weight that are not arrays.
struct WeightFormat {
  int bits, group;
  Coding coding;
  bool bias;
  std::optional<LinearWeight::Packed> packed;
  explicit WeightFormat(const LinearWeight& w)
      : bits(w.bits), group(w.group), coding(w.coding), bias(w.bias.has_value()), packed(w.packed) {}
  bool operator==(const WeightFormat&) const = default;
};

/// Whether one node can run them all: on the CPU all are packed; on a GPU dense and affine weights also run as they are, packed or not
/// alike.
bool fit_one_node(std::initializer_list<const LinearWeight*> weights);

/// Appends the weight's arrays: weight, (scales, (biases,)) (bias). Of a packed weight only the bias is one.
void add_inputs(const LinearWeight& weight, std::vector<mx::array>& inputs);
/// For eval: the same arrays in the same order, each from `take`. job_of: of a packed weight, the result is the caller's to fill in;
/// matrix_of: of another, without its bias.
LinearJob job_of(const WeightFormat& format, const std::function<mx::array()>& take);
kernels::LinearMatrix matrix_of(const WeightFormat& format, const std::function<mx::array()>& take);
kernels::PackedMatrix packed_matrix_of(const LinearWeight& weight);
kernels::PackedMatrix packed_matrix_of(const WeightFormat& format);

}  // namespace tersor::ops
