// A strided array into contiguous memory. Launch description only (launch.h).
#pragma once

#include "kernels/cuda/launch.h"

namespace tersor::kernels::cuda {

constexpr int kCopyAxes = 8;
struct CopyParams {
  const void* from = nullptr;
  void* to = nullptr;
  long long count = 0;
  int bytes = 2, axes = 0;  // of a number: 1, 2, 4 or 8
  int shape[kCopyAxes] = {};
  long long strides[kCopyAxes] = {};  // in numbers
};
Launch copy_strided(const CopyParams& params);

}  // namespace tersor::kernels::cuda
