#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <sstream>
#include <stdexcept>

#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/rope_run.h"

namespace tersor::ops {
namespace {

// Inputs: q, k, inv_freq, (q_norm), (k_norm). Outputs: q, k.
class Rope : public Node {
 public:
  struct Params {
    int head_dim;
    bool q_norm, k_norm;
    float attention_scale, eps;
    int64_t position;
    bool operator==(const Params&) const = default;
  };
  Rope(mx::Stream stream, Params params) : Node(stream), params_(params) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> in;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      in.push_back(row_contiguous(input, encoder));
    }
    RopeRun work{};
    work.inv_freq = in[2].data<float>();
    work.pairs = in[2].size();
    work.batch = static_cast<size_t>(in[0].shape(0)), work.tokens = static_cast<size_t>(in[0].shape(1));
    work.position = params_.position, work.scale = params_.attention_scale;
    for (size_t i = 0, norm = 3; i < 2; ++i) {
      outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      encoder.set_output_array(outputs[i]);
      const bool normed = i == 0 ? params_.q_norm : params_.k_norm;
      const mx::array* weight = normed ? &in[norm++] : nullptr;
      work.parts[i] =
          rope_part(dtype_of(in[i], "rope"), static_cast<size_t>(in[i].shape(2)), params_.head_dim, work.pairs, weight, params_.eps);
      work.parts[i].from = in[i].data<char>(), work.parts[i].to = outputs[i].data<char>();
    }
    dispatch(encoder, [work](Later later) {
      RopeRun now = work;
      now.position += later.tokens;
      run_rope(now);
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const auto& p = params_;
    require_gpu_plugin("rope").rope(stream(), {p.head_dim, p.q_norm, p.k_norm, p.attention_scale, p.eps, p.position}, inputs, outputs);
  }
  const char* name() const override { return "TersorRope"; }
  bool is_equivalent(const mx::Primitive& other) const override { return params_ == static_cast<const Rope&>(other).params_; }

 private:
  Params params_;
};

}  // namespace

void check_rope(const mx::Shape& q, const mx::Shape& k, const RopeParams& p, int64_t position) {
  const auto fail = [&](const auto&... parts) {
    std::ostringstream text;
    text << "[rope] ";
    (text << ... << parts);
    throw std::invalid_argument(text.str());
  };
  if (p.head_dim <= 0) fail("head_dim must be positive, not ", p.head_dim);
  for (const auto* shape : {&q, &k})
    if (shape->size() != 3 || (*shape)[2] % p.head_dim)
      fail("q and k must be [batch, tokens, heads * ", p.head_dim, "]; got ", q, " and ", k);
  if (q[0] != k[0] || q[1] != k[1]) fail("q and k must have equally many batches and tokens; got ", q, " and ", k);
  if (p.inv_freq.ndim() != 1 || p.inv_freq.dtype() != mx::float32 || 2 * p.inv_freq.size() > static_cast<size_t>(p.head_dim) ||
      !p.inv_freq.size())
    fail("inv_freq must be float32 with 1 to head_dim / 2 numbers; got ", p.inv_freq.dtype(), " ", p.inv_freq.shape());
  for (const auto* norm : {&p.q_norm, &p.k_norm}) {
    if (!*norm) continue;
    dtype_of(**norm, "rope");
    if ((*norm)->shape() != mx::Shape{p.head_dim}) fail("head norms must have shape [", p.head_dim, "], not ", (*norm)->shape());
  }
  if (position < 0) fail("position must not be negative, but is ", position);
}

QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, const Choice& choice,
              mx::StreamOrDevice s) {
  for (const auto* x : {&q, &k}) dtype_of(*x, "rope");
  check_rope(q.shape(), k.shape(), params, position);
  if (!q.size() || !k.size()) return {q, k};
  if (!choice.fast) return composed::rope(q, k, params, position, s);
  std::vector<mx::array> inputs{q, k, params.inv_freq};
  if (params.q_norm) inputs.push_back(*params.q_norm);
  if (params.k_norm) inputs.push_back(*params.k_norm);
  const Rope::Params p{params.head_dim,        params.q_norm.has_value(), params.k_norm.has_value(),
                       params.attention_scale, params.norm_eps,           position};
  auto out = mx::array::make_arrays({q.shape(), k.shape()}, {q.dtype(), k.dtype()}, std::make_shared<Rope>(mx::to_stream(s), p), inputs);
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace tersor::ops
