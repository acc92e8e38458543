#include "ops/composed.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/norm_rope.h"

namespace tersor::ops::composed {
namespace {

// x W^T (+ bias) in whatever type MLX promotes to.
mx::array product(const mx::array& x, const LinearWeight& w, mx::StreamOrDevice s) {
  mx::array y = w.bits ? mx::quantized_matmul(x, w.weight, *w.scales, w.biases, true, w.group, w.bits, "affine", s)
                       : mx::matmul(x, mx::transpose(w.weight, s), s);
  return w.bias ? mx::add(y, *w.bias, s) : y;
}

// Heads of [B, L, H * D], normed if asked for, turned, in the input's type.
mx::array turn(const mx::array& x, const RopeParams& p, const std::optional<mx::array>& norm, const mx::array& cosines,
               const mx::array& sines, mx::StreamOrDevice s) {
  const int rotary = 2 * static_cast<int>(p.inv_freq.size()), d = p.head_dim;
  mx::array heads = mx::astype(mx::reshape(x, {x.shape(0), x.shape(1), x.shape(2) / d, d}, s), mx::float32, s);
  if (norm) heads = mx::fast::rms_norm(heads, mx::astype(*norm, mx::float32, s), p.norm_eps, s);
  const mx::Shape end = heads.shape();
  const auto part = [&](int from, int to) { return mx::slice(heads, {0, 0, 0, from}, {end[0], end[1], end[2], to}, s); };
  const mx::array a = part(0, rotary / 2), b = part(rotary / 2, rotary);
  std::vector<mx::array> parts = {mx::subtract(mx::multiply(a, cosines, s), mx::multiply(b, sines, s), s),
                                  mx::add(mx::multiply(a, sines, s), mx::multiply(b, cosines, s), s)};
  if (rotary < d) parts.push_back(part(rotary, d));
  return mx::astype(mx::reshape(mx::concatenate(parts, 3, s), x.shape(), s), x.dtype(), s);
}

}  // namespace

mx::array linear(const mx::array& x, const LinearWeight& weight, mx::StreamOrDevice s) {
  return mx::astype(product(x, weight, s), x.dtype(), s);
}

mx::array linear_add(const mx::array& x, const LinearWeight& weight, const mx::array& residual, mx::StreamOrDevice s) {
  return mx::astype(mx::add(residual, product(x, weight, s), s), x.dtype(), s);
}

mx::array linear_swiglu(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, mx::StreamOrDevice s) {
  const mx::array g = product(x, gate, s);
  return mx::astype(mx::multiply(mx::multiply(g, mx::sigmoid(g, s), s), product(x, up, s), s), x.dtype(), s);
}

mx::array embed(const mx::array& ids, const LinearWeight& w, mx::Dtype dtype, mx::StreamOrDevice s) {
  if (mx::any(mx::logical_or(mx::less(ids, mx::array(0), s), mx::greater_equal(ids, mx::array(w.out_features()), s), s), s).item<bool>())
    throw std::invalid_argument("[embed] an id is outside the table of " + std::to_string(w.out_features()) + " rows");
  const mx::array rows = mx::take(w.weight, ids, 0, s);
  if (!w.bits) return mx::astype(rows, dtype, s);
  const mx::array scales = mx::astype(mx::take(*w.scales, ids, 0, s), mx::float32, s);
  const mx::array biases = mx::astype(mx::take(*w.biases, ids, 0, s), mx::float32, s);
  return mx::astype(mx::dequantize(rows, scales, biases, w.group, w.bits, "affine", std::nullopt, std::nullopt, s), dtype, s);
}

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, mx::StreamOrDevice s) {
  return mx::astype(mx::fast::rms_norm(x, weight, eps, s), x.dtype(), s);
}

QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, mx::StreamOrDevice s) {
  mx::array frequencies = mx::contiguous(params.inv_freq, false, s);
  frequencies.eval();
  const size_t pairs = frequencies.size(), tokens = static_cast<size_t>(q.shape(1));
  std::vector<float> table(tokens * 2 * pairs);
  kernels::rope_table(frequencies.data<float>(), pairs, position, tokens, params.attention_scale, table.data());
  const int half = static_cast<int>(pairs), length = q.shape(1);
  const mx::array both(table.data(), {length, 1, 2 * half}, mx::float32);
  const mx::array cosines = mx::slice(both, {0, 0, 0}, {length, 1, half}, s),
                  sines = mx::slice(both, {0, 0, half}, {length, 1, 2 * half}, s);
  return {turn(q, params, params.q_norm, cosines, sines, s), turn(k, params, params.k_norm, cosines, sines, s)};
}

}  // namespace tersor::ops::composed
