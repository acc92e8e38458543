// Matrices of activations as the kernels take them.
#pragma once

#include "ops/cuda/encoder.h"

namespace tersor::ops::cuda {

/// base's types of MLX's; throws std::runtime_error for others than the three.
Dtype type_of(const mx::array& x);

/// x itself where its rows lie one after the other from a 16-byte boundary on, else a copy.
mx::array dense_rows(Encoder& encoder, const mx::array& x);

/// Normed rows of x [..., n].
void norm_rows(Encoder& encoder, const mx::array& x, const mx::array& weight, float eps, mx::array& out);

}  // namespace tersor::ops::cuda
