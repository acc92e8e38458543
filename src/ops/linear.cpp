#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/linear_gpu.h"
#include "ops/linear_inputs.h"

namespace tersor::ops {
namespace {

// Inputs: x, (norm,) (add: residual,) then of each weight its arrays. Outputs: one a weight, or one of a pair.
class Linear : public Node {
 public:
  Linear(mx::Stream stream, LinearKind kind, Activation activation, std::optional<float> norm_eps, std::vector<WeightFormat> formats)
      : Node(stream), kind_(kind), activation_(activation), norm_eps_(norm_eps), formats_(std::move(formats)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    InputTaker take(inputs, stream());
    LinearRun run;
    run.kind = kind_;
    run.activation = activation_;
    run.type = dtype_of(inputs[0], "linear");
    run.x = take().data<void>();
    if (norm_eps_) {
      const mx::array weight = take();
      run.norm = {weight.data<void>(), dtype_of(weight, "linear"), *norm_eps_};
    }
    if (kind_ == LinearKind::add) run.residual = take().data<void>();
    for (const auto& format : formats_) run.jobs.push_back(job_of(format, [&take] { return take(); }));
    run.rows = inputs[0].size() / run.jobs[0].matrix.in;
    for (size_t j = 0; j < outputs.size(); ++j) {
      outputs[j].set_data(mx::allocator::malloc(outputs[j].nbytes()));
      take.encoder().set_output_array(outputs[j]);
      run.jobs[j].out = outputs[j].data<void>();
    }
    dispatch(take.encoder(), [run = std::move(run)] { run_linear(run); });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("linear").linear(stream(), {kind_, norm_eps_, formats_}, inputs, outputs);
  }
  const char* name() const override { return "TersorLinear"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const Linear&>(other);
    return kind_ == o.kind_ && activation_ == o.activation_ && norm_eps_ == o.norm_eps_ && formats_ == o.formats_;
  }

 private:
  LinearKind kind_;
  Activation activation_;
  std::optional<float> norm_eps_;
  std::vector<WeightFormat> formats_;
};

mx::Shape result_shape(const mx::array& x, const LinearWeight& weight) {
  mx::Shape shape = x.shape();
  shape.back() = weight.out_features();
  return shape;
}

mx::Shape logits_shape(const mx::array& x, const LinearWeight& weight) {
  return {static_cast<int>(x.size() / static_cast<size_t>(weight.in_features())), weight.out_features()};
}

// The node of all ops. x and weights were checked and x is not empty.
std::vector<mx::array> node(LinearKind kind, const mx::array& x, const std::optional<RmsNorm>& norm, std::span<const LinearWeight> weights,
                            const mx::array* residual, mx::StreamOrDevice s, Activation activation = Activation::silu,
                            bool as_logits = false) {
  std::vector<mx::array> inputs{x};
  if (norm) inputs.push_back(norm->weight);
  if (residual) inputs.push_back(*residual);
  std::vector<WeightFormat> formats;
  std::vector<mx::Shape> shapes;
  for (const auto& w : weights) {
    formats.emplace_back(w);
    add_inputs(w, inputs);
    if (shapes.empty() || kind != LinearKind::gated) shapes.push_back(result_shape(x, w));
  }
  if (as_logits) shapes[0] = logits_shape(x, weights[0]);
  const std::vector<mx::Dtype> dtypes(shapes.size(), as_logits ? mx::float32 : x.dtype());
  const auto eps = norm ? std::optional(norm->eps) : std::nullopt;
  return mx::array::make_arrays(std::move(shapes), dtypes,
                                std::make_shared<Linear>(mx::to_stream(s), kind, activation, eps, std::move(formats)), inputs);
}

// Whether the fast node runs. Packed weights have no other way; on the CPU others have no kernel; dense ones on a GPU leave many rows to
// MLX.
bool runs_fast(const std::string& op, const mx::array& x, std::span<const LinearWeight> weights, const Choice& choice) {
  for (const auto& weight : weights) {
    if (weight.packed && !choice.fast) throw std::invalid_argument("[" + op + "] packed weights need their fast kernel");
    if (!fit_one_node({&weight}) && choice.fast)
      throw std::invalid_argument("[" + op + "] weights of " + weight.str() + " must be packed for their fast kernel");
    if (!gpu_takes_rows(x, weight)) return false;
  }
  return choice.fast;
}

bool alike(std::span<const LinearWeight> weights) {
  return std::all_of(weights.begin(), weights.end(), [&](const auto& w) { return fit_one_node({&w, &weights[0]}); });
}

mx::array normed(const mx::array& x, const std::optional<RmsNorm>& norm, mx::StreamOrDevice s) {
  return norm ? composed::rms_norm(x, norm->weight, norm->eps, s) : x;
}

}  // namespace

std::vector<mx::array> linear(const mx::array& x, std::span<const LinearWeight> weights, const Choice& choice,
                              const std::optional<RmsNorm>& norm, mx::StreamOrDevice s) {
  if (weights.empty()) throw std::invalid_argument("[linear] no weights were given");
  for (const auto& weight : weights) check_linear("linear", x, weight);
  check_norm("linear", norm, weights[0].in_features());
  const bool fast = runs_fast("linear", x, weights, choice) && x.size();
  if (fast && alike(weights)) return node(LinearKind::plain, x, norm, weights, nullptr, s);
  std::vector<mx::array> results;
  if (fast) {
    for (const auto& weight : weights) results.push_back(node(LinearKind::plain, x, norm, {&weight, 1}, nullptr, s).front());
    return results;
  }
  const mx::array rows = x.size() ? normed(x, norm, s) : x;
  for (const auto& weight : weights)
    results.push_back(x.size() ? composed::linear(rows, weight, s) : mx::zeros(result_shape(x, weight), x.dtype(), s));
  return results;
}

mx::array linear_add(const mx::array& x, const LinearWeight& weight, const mx::array& residual, const Choice& choice,
                     mx::StreamOrDevice s) {
  check_linear("linear_add", x, weight);
  if (residual.shape() != result_shape(x, weight) || residual.dtype() != x.dtype()) {
    std::ostringstream text;
    text << "[linear_add] residual is " << residual.dtype() << " " << residual.shape() << "; expected x's dtype and shape "
         << result_shape(x, weight);
    throw std::invalid_argument(text.str());
  }
  if (!x.size()) return residual;
  if (!runs_fast("linear_add", x, {&weight, 1}, choice)) return composed::linear_add(x, weight, residual, s);
  return node(LinearKind::add, x, std::nullopt, {&weight, 1}, &residual, s).front();
}

mx::array linear_gated(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, Activation activation, const Choice& choice,
                       const std::optional<RmsNorm>& norm, mx::StreamOrDevice s) {
  check_linear("linear_gated", x, gate);
  check_linear("linear_gated", x, up);
  check_norm("linear_gated", norm, gate.in_features());
  if (gate.out_features() != up.out_features())
    throw std::invalid_argument("[linear_gated] gate has " + std::to_string(gate.out_features()) + " rows, up " +
                                std::to_string(up.out_features()) + ": they must be equal");
  if (!x.size()) return mx::zeros(result_shape(x, gate), x.dtype(), s);
  const LinearWeight pair[] = {gate, up};
  if (!runs_fast("linear_gated", x, pair, choice)) return composed::linear_gated(normed(x, norm, s), gate, up, activation, s);
  if (alike(pair) && gpu_takes(activation)) return node(LinearKind::gated, x, norm, pair, nullptr, s, activation).front();
  const auto parts = linear(x, pair, choice, norm, s);
  return mx::multiply(composed::activate(parts[0], activation, s), parts[1], s);
}

mx::array logits(const mx::array& x, const LinearWeight& weight, const Choice& choice, const RmsNorm& norm, mx::StreamOrDevice s) {
  check_linear("logits", x, weight);
  check_norm("logits", norm, weight.in_features());
  if (x.size() && runs_fast("logits", x, {&weight, 1}, choice))
    return node(LinearKind::plain, x, norm, {&weight, 1}, nullptr, s, Activation::silu, true).front();
  return mx::astype(mx::reshape(linear(x, {&weight, 1}, choice, norm, s).front(), logits_shape(x, weight), s), mx::float32, s);
}

}  // namespace tersor::ops
