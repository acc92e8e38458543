// What happens to a finished sum: bias, silu(gate) * up, residual, and its place in the output.
#pragma once

#include "kernels/cuda/linear_values.cuh"

namespace tersor::kernels::cuda {

__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.f + __expf(-v)); }

/// The output that a strip belongs to.
template <class Params>
__device__ __forceinline__ const LinearOutput& output_of(const Params& p, int strip) {
  int i = 0;
  while (i + 1 < p.output_count && strip >= p.outputs[i + 1].first_strip) ++i;
  return p.outputs[i];
}

/// Finishes row m of x with row r of a strip, for results of type Y. Pairs: r < 8, and `up` is the sum of row r + 8.
template <class Y, class Params>
__device__ __forceinline__ void finish_as(const Params& p, const LinearOutput& out, int strip, int m, int r, float v, float up) {
  const int column = (strip - out.first_strip) * (p.paired ? kStripRows / 2 : kStripRows) + r;
  if (column >= out.columns) return;
  const long long at = m * out.stride + column;
  if (out.bias) v += to_float(static_cast<const Y*>(out.bias)[column]);
  if (p.paired) {
    if (out.bias_up) up += to_float(static_cast<const Y*>(out.bias_up)[column]);
    v = silu(v) * up;
  }
  if (out.residual) v += to_float(static_cast<const Y*>(out.residual)[at]);
  static_cast<Y*>(out.y)[at] = from_float<Y>(v);
}
template <class Params>
__device__ __forceinline__ void finish(const Params& p, int strip, int m, int r, float v, float up) {
  const LinearOutput& out = output_of(p, strip);
  if (p.y_type == Dtype::bf16)
    finish_as<__nv_bfloat16>(p, out, strip, m, r, v, up);
  else if (p.y_type == Dtype::f16)
    finish_as<__half>(p, out, strip, m, r, v, up);
  else
    finish_as<float>(p, out, strip, m, r, v, up);
}

}  // namespace tersor::kernels::cuda
