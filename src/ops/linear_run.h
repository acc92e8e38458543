// Linear layers over raw pointers on all threads: blocks for the caches, tasks, scratch.
#pragma once

#include <vector>

#include "kernels/cpu/linear.h"

namespace tersor::ops {

struct LinearJob {
  kernels::LinearMatrix matrix;
  const void* bias = nullptr;
  Dtype bias_type = Dtype::f32;
  void* out = nullptr;  // [rows, matrix.out], of the type of x; unused for the second job of a gated pair
};

enum class LinearKind { plain, add, swiglu };

/// All jobs share x [rows, in]. add: one job, `residual` [rows, out] is added. swiglu: two jobs, gate and up, one result.
struct LinearRun {
  LinearKind kind = LinearKind::plain;
  Dtype type = Dtype::f32;
  const void* x = nullptr;
  const void* residual = nullptr;
  size_t rows = 0;
  std::vector<LinearJob> jobs;
};

/// In one parallel region (two when x must be converted first). Runs on the stream's thread.
void run_linear(const LinearRun& run);

}  // namespace tersor::ops
