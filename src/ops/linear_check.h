// Checks of a weight matrix, and its view for the kernels.
#pragma once

#include <string>

#include "tersor/ops.h"

namespace tersor::ops {

/// Throws std::invalid_argument, with the op's name in front, when the weight is not what LinearWeight describes.
void check_weight(const std::string& op, const LinearWeight& weight);
/// And when x [..., in] does not fit it or is neither f32, f16 nor bf16.
void check_linear(const std::string& op, const mx::array& x, const LinearWeight& weight);

/// And when a norm [in] does not fit.
void check_norm(const std::string& op, const std::optional<RmsNorm>& norm, int in);

}  // namespace tersor::ops
