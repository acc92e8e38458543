#include "ops/composed.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/norm_rope.h"

namespace tersor::ops::composed {
namespace {

// x W^T (+ bias) in whatever type MLX promotes to.
mx::array product(const mx::array& x, const LinearWeight& w, mx::StreamOrDevice s) {
  const std::string mode(name_of(w.coding));
  mx::array y = w.bits ? mx::quantized_matmul(x, w.weight, *w.scales, w.biases, true, w.group, w.bits, mode, s)
                       : mx::matmul(x, mx::transpose(w.weight, s), s);
  return w.bias ? mx::add(y, *w.bias, s) : y;
}

// Whether every id is below `rows`. Ids that are in memory are looked at there: a device need not be waited for.
bool in_table(const mx::array& ids, int rows, mx::StreamOrDevice s) {
  if (ids.is_available() && ids.flags().row_contiguous && ids.dtype() == mx::int64) {
    const std::span all(ids.data<int64_t>(), ids.size());
    return std::all_of(all.begin(), all.end(), [&](int64_t id) { return id >= 0 && id < rows; });
  }
  const mx::array outside = mx::logical_or(mx::less(ids, mx::array(0), s), mx::greater_equal(ids, mx::array(rows), s), s);
  return !mx::any(outside, s).item<bool>();
}

// Cosines and sines of a call, [L, 1, pairs] each. All layers of a step turn alike, so this thread's last table is kept.
struct Turns {
  mx::array frequencies;
  int64_t position;
  int tokens;
  float scale;
  mx::array cosines, sines;
};

const Turns& turns(const RopeParams& params, int64_t position, int tokens, mx::StreamOrDevice s) {
  thread_local std::optional<Turns> last;
  if (last && last->frequencies.id() == params.inv_freq.id() && last->position == position && last->tokens == tokens &&
      last->scale == params.attention_scale)
    return *last;
  mx::array frequencies = params.inv_freq;
  if (!frequencies.is_available() || !frequencies.flags().row_contiguous) {
    frequencies = mx::contiguous(frequencies, false, s);
    frequencies.eval();
  }
  const size_t pairs = frequencies.size(), rows = static_cast<size_t>(tokens);
  std::vector<float> table(rows * 2 * pairs);
  kernels::rope_table(frequencies.data<float>(), pairs, position, rows, params.attention_scale, table.data());
  const int half = static_cast<int>(pairs);
  const mx::array both(table.data(), {tokens, 1, 2 * half}, mx::float32);
  last = Turns{params.inv_freq,
               position,
               tokens,
               params.attention_scale,
               mx::slice(both, {0, 0, 0}, {tokens, 1, half}, s),
               mx::slice(both, {0, 0, half}, {tokens, 1, 2 * half}, s)};
  return *last;
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

mx::array activate(const mx::array& gate, Activation activation, mx::StreamOrDevice s) {
  const auto number = [&](double value) { return mx::array(static_cast<float>(value), gate.dtype()); };
  const auto half_times_one_plus = [&](const mx::array& v) {
    return mx::multiply(mx::multiply(gate, number(0.5), s), mx::add(v, number(1), s), s);
  };
  switch (activation) {
    case Activation::silu: break;
    case Activation::gelu: return half_times_one_plus(mx::erf(mx::multiply(gate, number(std::numbers::sqrt2 / 2), s), s));
    case Activation::gelu_tanh: {
      const mx::array cube = mx::multiply(mx::multiply(gate, gate, s), gate, s);
      const mx::array inner = mx::add(gate, mx::multiply(cube, number(0.044715), s), s);
      return half_times_one_plus(mx::tanh(mx::multiply(inner, number(std::sqrt(2 / std::numbers::pi)), s), s));
    }
  }
  return mx::multiply(gate, mx::sigmoid(gate, s), s);
}

mx::array linear_gated(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, Activation activation, mx::StreamOrDevice s) {
  return mx::astype(mx::multiply(activate(product(x, gate, s), activation, s), product(x, up, s), s), x.dtype(), s);
}

mx::array embed(const mx::array& ids, const LinearWeight& w, mx::Dtype dtype, mx::StreamOrDevice s) {
  if (!in_table(ids, w.out_features(), s))
    throw std::invalid_argument("[embed] an id is outside the table of " + std::to_string(w.out_features()) + " rows");
  const mx::array rows = mx::take(w.weight, ids, 0, s);
  if (!w.bits) return mx::astype(rows, dtype, s);
  const std::string mode(name_of(w.coding));
  mx::array scales = mx::take(*w.scales, ids, 0, s);
  std::optional<mx::array> biases;
  if (w.biases) {
    scales = mx::astype(scales, mx::float32, s);
    biases = mx::astype(mx::take(*w.biases, ids, 0, s), mx::float32, s);
  }
  return mx::astype(mx::dequantize(rows, scales, biases, w.group, w.bits, mode, std::nullopt, mx::float32, s), dtype, s);
}

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, mx::StreamOrDevice s) {
  return mx::astype(mx::fast::rms_norm(x, weight, eps, s), x.dtype(), s);
}

QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, mx::StreamOrDevice s) {
  const Turns& t = turns(params, position, q.shape(1), s);
  return {turn(q, params, params.q_norm, t.cosines, t.sines, s), turn(k, params, params.k_norm, t.cosines, t.sines, s)};
}

}  // namespace tersor::ops::composed
