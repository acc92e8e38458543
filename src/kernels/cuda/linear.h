// Products with affine-quantised weights (4 or 8 bits, groups of 32, 64 or 128) on NVIDIA GPUs, from a layout made for tensor cores.
//
// A weight is repacked once (linear_repack); its codes, scales and biases stay exactly what they were. Then
//   linear_rows   1 to 16 rows of x: every code is read once, at memory speed; no weight is rounded. Up to 4 rows of x are taken as
//                 16-bit integers with a scale for each group (linear_few.cuh);
//   linear_tiles  more rows: weights become x's type in registers and meet x on the warpgroup tensor cores (Hopper);
//   linear_dense  1 to 16 rows of x and a dense 16-bit weight as it lies.
// All results are x W^T, plus bias, plus residual, or silu(gate) * up. Everything here only describes launches (launch.h): nothing
// allocates, throws or runs. A Launch whose function is null means that the problem has no kernel here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "tersor/base.h"

namespace tersor::kernels::cuda {

/// Rows of a strip, the unit of the packed layout (linear_layout.h).
constexpr int kStripRows = 16;

/// The shape of a packed weight. Strips of 16 rows follow one another. Several weights with equal bits, group, k and types may lie in
/// one packed array, each starting at a strip (q, k and v; the rows of a last strip are filled with zeros). `paired`: strip i holds
/// rows 8i to 8i + 7 of two weights of equal size, gate first, up second.
struct PackedLinear {
  int bits = 0, group = 0;
  Dtype scale_type = Dtype::f16;  // as stored: that of x, or f32
  int k = 0;                      // codes of a row, a multiple of group
  int strips = 0;
  bool paired = false;
};
bool linear_supported(const PackedLinear& weight);
size_t linear_packed_bytes(const PackedLinear& weight);
/// Strips that a weight of `rows` rows takes.
constexpr int linear_strips(int rows, bool paired) {
  return paired ? (rows + kStripRows / 2 - 1) / (kStripRows / 2) : (rows + kStripRows - 1) / kStripRows;
}

/// A weight in MLX's affine layout: codes LSB first in uint32 [rows, k * bits / 32], scales and biases [rows, k / group].
struct AffineRows {
  const uint32_t* codes = nullptr;
  const void* scales = nullptr;
  const void* biases = nullptr;
};
struct RepackParams {
  AffineRows from[2];  // the second only if paired
  uint8_t* to = nullptr;
  int rows = 0, bits = 0, group = 0, k = 0, first_strip = 0;
  bool paired = false;
  Dtype from_scale = Dtype::f16, to_scale = Dtype::f16;
};
/// Fills the strips of one weight (or pair) from `first_strip` on. `to` is 128-byte aligned, linear_packed_bytes(shape) long. Scales of
/// another 16-bit type than the stored one are an unsupported problem: store them as f32.
Launch linear_repack(const PackedLinear& shape, const AffineRows& weight, const AffineRows& up, int rows, Dtype scale_type, int first_strip,
                     void* to, RepackParams* params);
/// The same on the host, plainly; every pointer is the host's.
void linear_repack_reference(const RepackParams& params, int strips);

struct DequantizeParams {
  const uint8_t* packed = nullptr;
  void* to = nullptr;
  int bits = 0, group = 0, k = 0, rows = 0, first_strip = 0, strips = 0;
  bool paired = false;
  Dtype scale_type = Dtype::f16, to_type = Dtype::f16;
};
/// Writes `strips` strips from first_strip on as dense rows [rows, k] of 16-bit type `to_type`; those of a pair as [2, rows, k].
Launch linear_dequantize(const PackedLinear& weight, const void* packed, int first_strip, int rows, Dtype to_type, void* to,
                         DequantizeParams* params);

/// Where the results of the strips from first_strip on go: y[row * stride + i] for i < columns.
struct LinearOutput {
  void* y = nullptr;
  const void* bias = nullptr;      // [columns] of y's type, or null
  const void* bias_up = nullptr;   // of the second weight of a pair
  const void* residual = nullptr;  // rows like y's, with the same stride, or null; may be y
  long long stride = 0;
  int columns = 0, first_strip = 0;
};
constexpr int kLinearOutputs = 4;

struct LinearProblem {
  PackedLinear weight;
  const void* packed = nullptr;
  const void* x = nullptr;  // [rows, k], each row contiguous; linear_tiles: 16-byte aligned rows
  long long x_stride = 0;
  Dtype x_type = Dtype::f16, y_type = Dtype::f16;
  int rows = 0;
  /// Null, or [k] of norm_type: x becomes x / sqrt(mean(x^2) + norm_eps) * norm, in float, as it is read. Up to kLinearNormRows rows.
  const void* norm = nullptr;
  Dtype norm_type = Dtype::f32;
  float norm_eps = 0;
  LinearOutput outputs[kLinearOutputs];  // in the order of their strips
  int output_count = 0;                  // 1 for a pair, whose result is silu(gate) * up
  void* workspace = nullptr;             // linear_*_workspace() bytes of its own for each launch in flight, 16-byte aligned; the
                                         // first kTicketBytes are zero before the first launch and are left zero by each
  int multiprocessors = 132, compute_capability = 90;  // of the device: 10 * major + minor
};
constexpr size_t kTicketBytes = 16384;

/// How linear_rows spreads a problem: a block of 16 warps takes `strips` strips and one of `splits` parts of k; `row_warps` of its
/// warps stand side by side over strips, the others share k. Zero: chosen by linear_rows_plan.
struct LinearRowsPlan {
  int strips = 0, splits = 0, row_warps = 0, stages = 0;
  int early = 0;  // tiles of each ring that may be on their way before x is there, besides the first
};
constexpr int kLinearRowsMost = 16, kLinearNormRows = 4;
struct LinearRowsParams {
  const uint8_t* weights = nullptr;
  const void* x = nullptr;
  float* partials = nullptr;
  unsigned* tickets = nullptr;
  LinearOutput outputs[kLinearOutputs];
  long long x_stride = 0;
  int output_count = 0, rows = 0, k = 0, strips = 0, tiles = 0;
  int strips_per_block = 0, splits = 0, tiles_per_split = 0, piece_shift = 0, row_warps_log2 = 0, stages = 0;
  int early = 0;                                        // tiles of a ring that are sent for before x can be read
  int x_at = 0, x_row = 0, sums_at = 0, reduce_at = 0;  // places in shared memory
  const void* norm = nullptr;
  float norm_eps = 0;
  Dtype x_type = Dtype::f16, y_type = Dtype::f16, norm_type = Dtype::f32;
  bool paired = false, bulk_x = false;  // bulk_x: x is copied as it is
};
LinearRowsPlan linear_rows_plan(const LinearProblem& problem);
/// Ticket and partial-sum bytes of the problem; 0: it needs none.
size_t linear_rows_workspace(const LinearProblem& problem, LinearRowsPlan plan = {});
Launch linear_rows(const LinearProblem& problem, LinearRowsParams* params, LinearRowsPlan plan = {});

/// How linear_tiles cuts a problem: tiles of 128 * blocks weight rows by `columns` rows of x, k in `splits` parts. Instances: 1 or
/// 2 blocks with 32, 64 or 128 columns. Zero: chosen by linear_tiles_plan.
struct LinearTilesPlan {
  int blocks = 0, columns = 0, splits = 0;
};
struct LinearTilesParams {
  const uint8_t* weights = nullptr;
  const void* x = nullptr;
  float* partials = nullptr;
  unsigned* tickets = nullptr;
  LinearOutput outputs[kLinearOutputs];
  long long x_stride = 0;
  int output_count = 0, rows = 0, k = 0, strips = 0, tiles = 0;
  int row_blocks = 0, column_blocks = 0, splits = 0, tiles_per_split = 0;
  Dtype y_type = Dtype::f16;
  bool paired = false, vectors = false;  // vectors: outputs take 16-byte stores
};
/// Any number of rows; x, y and the stored scales are of one 16-bit type. Needs Hopper (compute capability 9.0).
LinearTilesPlan linear_tiles_plan(const LinearProblem& problem);
size_t linear_tiles_workspace(const LinearProblem& problem, LinearTilesPlan plan = {});
Launch linear_tiles(const LinearProblem& problem, LinearTilesParams* params, LinearTilesPlan plan = {});

/// Dense weights as they lie: output i is x times the transpose of weights[i], [outputs[i].columns, k] of a 16-bit type, rows
/// contiguous and 16-byte aligned (weight.scale_type names the type); `packed`, bits, group and first_strip are not used. A pair is
/// weights[0] (gate) and weights[1] (up).
struct LinearDenseParams {
  LinearRowsParams rows;
  const void* dense[kLinearOutputs] = {};
};
size_t linear_dense_workspace(const LinearProblem& problem);
Launch linear_dense(const LinearProblem& problem, const void* const* weights, LinearDenseParams* params);

}  // namespace tersor::kernels::cuda
