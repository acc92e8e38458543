// Checks of a weight matrix, and its view for the kernels.
#pragma once

#include <string>

#include "kernels/cpu/linear.h"
#include "tersor/ops.h"

namespace tersor::ops {

/// Throws std::invalid_argument, with the op's name in front, when the weight is not what LinearWeight describes.
void check_weight(const std::string& op, const LinearWeight& weight);
/// And when x [..., in] does not fit it or is neither f32, f16 nor bf16.
void check_linear(const std::string& op, const mx::array& x, const LinearWeight& weight);

/// For eval: shape, bits and the weight's data; scales and biases are the caller's to fill in.
kernels::LinearMatrix matrix_of(const mx::array& weight, int bits, int group);

}  // namespace tersor::ops
