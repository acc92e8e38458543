// Linear layers over raw pointers on all threads: blocks for the caches, tasks, scratch.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/linear_packed.h"

namespace tersor::ops {

struct LinearJob {
  kernels::PackedMatrix matrix;
  std::shared_ptr<const uint8_t> owner;  // of its data
  const void* bias = nullptr;
  Dtype bias_type = Dtype::f32;
  void* out = nullptr;  // [rows, matrix.out], of the run's type; unused for the second job of a gated pair
};

enum class LinearKind { plain, add, gated };

/// An RMS norm of the rows of x, applied first.
struct NormJob {
  const void* weight = nullptr;  // [in]; null: none
  Dtype type = Dtype::f32;
  float eps = 0;
};

/// All jobs share x [rows, in]. add: one job, `residual` [rows, out] is added. gated: two jobs, gate and
/// up, one result.
struct LinearRun {
  LinearKind kind = LinearKind::plain;
  Activation activation = Activation::silu;  // of the gate
  Dtype type = Dtype::f32;                   // of x, residual and results
  const void* x = nullptr;
  NormJob norm;
  const void* residual = nullptr;
  size_t rows = 0;
  std::vector<LinearJob> jobs;
};

/// In one parallel region, or two when x must be prepared first. Runs on the stream's thread.
void run_linear(const LinearRun& run);

}  // namespace tersor::ops
