// Linear layers on a GPU: what its kernels take.
#pragma once

#include "tersor/ops.h"

namespace tersor::ops {

/// False where the device is a GPU, the weight is dense and x has more rows than the dense kernels take: MLX's product is fast there.
bool gpu_takes_rows(const mx::array& x, const LinearWeight& weight);

/// False where the device is a GPU and its kernels of gated pairs do not apply the activation.
bool gpu_takes(Activation activation);

/// Whether the plug-in has kernels for a variant as LinearWeight::str() writes it.
bool gpu_linear_supports(std::string_view variant, Dtype x);

}  // namespace tersor::ops
