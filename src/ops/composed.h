// The ops of tersor/ops.h out of public MLX operations: readable, portable, and what a machine without fast kernels runs.
// Arguments were checked by the caller.
#pragma once

#include "tersor/ops.h"

namespace tersor::ops::composed {

mx::array linear(const mx::array& x, const LinearWeight& weight, mx::StreamOrDevice s);
mx::array linear_add(const mx::array& x, const LinearWeight& weight, const mx::array& residual, mx::StreamOrDevice s);
mx::array activate(const mx::array& gate, Activation activation, mx::StreamOrDevice s);
mx::array linear_gated(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, Activation activation, mx::StreamOrDevice s);
/// Evaluates the ids to check them, unless they are int64 in memory already.
mx::array embed(const mx::array& ids, const LinearWeight& weight, mx::Dtype dtype, mx::StreamOrDevice s);
mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, mx::StreamOrDevice s);
/// Evaluates inv_freq: the table of cosines and sines is made in double on the host, once for calls in a row with equal arguments.
QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, mx::StreamOrDevice s);

}  // namespace tersor::ops::composed
