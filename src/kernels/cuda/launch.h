// How a kernel of this room is handed to whoever launches it: as a description, so that it can become a node of a graph that another
// library builds, or be launched directly.
//
// Every kernel takes exactly one argument, a trivially copyable struct of parameters by value (`__grid_constant__`), which the function
// that makes the Launch fills in beside it. `function` is the symbol of the __global__ function: cudaGetFuncBySymbol and
// cudaLaunchKernel take it. When shared_bytes is above 48 KiB the caller raises cudaFuncAttributeMaxDynamicSharedMemorySize of the
// function once beforehand.
#pragma once

#include <vector_types.h>

namespace tersor::kernels::cuda {

struct Launch {
  const void* function = nullptr;  // null: there is no kernel for the problem
  dim3 grid = {1, 1, 1}, block = {1, 1, 1};
  unsigned shared_bytes = 0;
};

}  // namespace tersor::kernels::cuda
