#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <sstream>
#include <stdexcept>

#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/linear_run.h"

namespace tersor::ops {
namespace {

// The parts of a weight that are not arrays.
struct Format {
  int bits, group;
  bool bias;
  bool operator==(const Format&) const = default;
};

// Inputs: x, (add: residual,) then of each weight: weight, (scales, biases,) (bias). Outputs: one a weight, or one of a pair.
class Linear : public mx::Primitive {
 public:
  Linear(mx::Stream stream, LinearKind kind, std::vector<Format> formats)
      : mx::Primitive(stream), kind_(kind), formats_(std::move(formats)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    size_t next = 0;
    // Strided inputs are copied by the stream; what is returned lives until the stream has passed it.
    const auto take = [&] {
      const mx::array& input = inputs[next++];
      encoder.set_input_array(input);
      return row_contiguous(input, encoder);
    };
    LinearRun run;
    run.kind = kind_;
    run.type = dtype_of(inputs[0], "linear");
    run.x = take().data<void>();
    if (kind_ == LinearKind::add) run.residual = take().data<void>();
    for (size_t j = 0; j < formats_.size(); ++j) run.jobs.push_back(job(formats_[j], take));
    run.rows = inputs[0].size() / run.jobs[0].matrix.in;
    for (size_t j = 0; j < outputs.size(); ++j) {
      outputs[j].set_data(mx::allocator::malloc(outputs[j].nbytes()));
      encoder.set_output_array(outputs[j]);
      run.jobs[j].out = outputs[j].data<void>();
    }
    encoder.dispatch([run = std::move(run)] { run_linear(run); });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[linear] the CPU kernel was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorLinear"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const Linear&>(other);
    return kind_ == o.kind_ && formats_ == o.formats_;
  }

 private:
  template <class Take>
  static LinearJob job(const Format& format, const Take& take) {
    LinearJob job;
    const mx::array weight = take();
    job.matrix = matrix_of(weight, format.bits, format.group);
    if (format.bits) {
      const mx::array scales = take(), biases = take();
      job.matrix.scales = scales.data<void>(), job.matrix.scale_type = dtype_of(scales, "linear");
      job.matrix.biases = biases.data<void>(), job.matrix.bias_type = dtype_of(biases, "linear");
    }
    if (format.bias) {
      const mx::array bias = take();
      job.bias = bias.data<void>(), job.bias_type = dtype_of(bias, "linear");
    }
    return job;
  }

  LinearKind kind_;
  std::vector<Format> formats_;
};

mx::Shape result_shape(const mx::array& x, const LinearWeight& weight) {
  mx::Shape shape = x.shape();
  shape.back() = weight.out_features();
  return shape;
}

// The node of all three ops. x and weights were checked and x is not empty.
std::vector<mx::array> node(LinearKind kind, const mx::array& x, std::span<const LinearWeight> weights, const mx::array* residual,
                            mx::StreamOrDevice s) {
  std::vector<mx::array> inputs{x};
  if (residual) inputs.push_back(*residual);
  std::vector<Format> formats;
  std::vector<mx::Shape> shapes;
  for (const auto& w : weights) {
    formats.push_back({w.bits, w.group, w.bias.has_value()});
    inputs.push_back(w.weight);
    if (w.bits) inputs.insert(inputs.end(), {*w.scales, *w.biases});
    if (w.bias) inputs.push_back(*w.bias);
    if (shapes.empty() || kind != LinearKind::swiglu) shapes.push_back(result_shape(x, w));
  }
  const std::vector<mx::Dtype> dtypes(shapes.size(), x.dtype());
  return mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<Linear>(mx::to_stream(s), kind, std::move(formats)), inputs);
}

}  // namespace

std::vector<mx::array> linear(const mx::array& x, std::span<const LinearWeight> weights, const Choice& choice, mx::StreamOrDevice s) {
  if (weights.empty()) throw std::invalid_argument("[linear] no weights were given");
  for (const auto& weight : weights) check_linear("linear", x, weight);
  if (choice.fast && x.size()) return node(LinearKind::plain, x, weights, nullptr, s);
  std::vector<mx::array> results;
  for (const auto& weight : weights)
    results.push_back(x.size() ? composed::linear(x, weight, s) : mx::zeros(result_shape(x, weight), x.dtype(), s));
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
  if (!choice.fast) return composed::linear_add(x, weight, residual, s);
  return node(LinearKind::add, x, {&weight, 1}, &residual, s).front();
}

mx::array linear_swiglu(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, const Choice& choice, mx::StreamOrDevice s) {
  check_linear("linear_swiglu", x, gate);
  check_linear("linear_swiglu", x, up);
  if (gate.out_features() != up.out_features())
    throw std::invalid_argument("[linear_swiglu] gate has " + std::to_string(gate.out_features()) + " rows, up " +
                                std::to_string(up.out_features()) + ": they must be equal");
  if (!x.size()) return mx::zeros(result_shape(x, gate), x.dtype(), s);
  if (!choice.fast) return composed::linear_swiglu(x, gate, up, s);
  const LinearWeight pair[] = {gate, up};
  return node(LinearKind::swiglu, x, pair, nullptr, s).front();
}

}  // namespace tersor::ops
