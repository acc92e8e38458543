// The two halves of a transformer layer around its attention, each one graph node: MLX's cost of a node is that of a small layer's kernel.
#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <sstream>
#include <stdexcept>

#include "ops/gpu_plugin.h"
#include "ops/linear_gpu.h"
#include "ops/node.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/linear_inputs.h"
#include "ops/rope_run.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

NormJob norm_job(InputTaker& take, float eps) {
  const mx::array weight = take();
  return {weight.data<void>(), dtype_of(weight, "layer"), eps};
}

void make_output(mx::array& output, mx::cpu::CommandEncoder& encoder) {
  output.set_data(mx::allocator::malloc(output.nbytes()));
  encoder.set_output_array(output);
}

// Room for `sizes` numbers of one type each, in the node's workspace; each part starts at a cache line.
template <size_t N>
std::array<char*, N> rooms(const std::array<size_t, N>& sizes, Dtype type) {
  std::array<char*, N> parts;
  size_t total = 0;
  std::array<size_t, N> offsets;
  for (size_t i = 0; i < N; ++i) offsets[i] = total, total += (sizes[i] * size_of(type) + 63) / 64 * 64;
  auto* const base = reinterpret_cast<char*>(workspace(total / sizeof(float), Workspace::node));
  for (size_t i = 0; i < N; ++i) parts[i] = base + offsets[i];
  return parts;
}

// Inputs: x, norm, three weights' arrays, inv_freq, (q_norm), (k_norm). Outputs: q, k, v.
class ProjectQkv : public Node {
 public:
  struct Params {
    std::vector<WeightFormat> formats;
    int head_dim;
    bool q_norm, k_norm;
    bool last_query;  // of one batch item; the others' queries are not needed
    float norm_eps, head_norm_eps, attention_scale;
    int64_t position;
    bool operator==(const Params&) const = default;
  };
  ProjectQkv(mx::Stream stream, Params params) : Node(stream), params_(std::move(params)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    InputTaker take(inputs, stream());
    LinearRun run;
    run.type = dtype_of(inputs[0], "project_qkv");
    run.x = take().data<void>();
    run.norm = norm_job(take, params_.norm_eps);
    for (const auto& format : params_.formats) run.jobs.push_back(job_of(format, [&take] { return take(); }));
    run.rows = inputs[0].size() / run.jobs[0].matrix.in;
    for (auto& output : outputs) make_output(output, take.encoder());
    run.jobs[2].out = outputs[2].data<void>();
    const std::array<size_t, 2> sizes{outputs[0].size(), outputs[1].size()};
    std::vector<RopeRun> turns{turn(take, run.type, inputs[0], outputs)};
    std::vector<LinearRun> runs{std::move(run)};
    if (params_.last_query) set_apart(runs, turns);
    dispatch(take.encoder(), [runs = std::move(runs), turns = std::move(turns), sizes](Later later) mutable {
      const auto [q, k] = rooms<2>(sizes, runs[0].type);
      runs.front().jobs.front().out = q, turns.front().parts[0].from = q;
      auto& last = runs.back().jobs;
      last[last.size() - 2].out = k, turns.back().parts[turns.back().part_count - 1].from = k;
      for (const auto& part : runs) run_linear(part);
      for (RopeRun part : turns) {
        part.position += later.tokens;
        run_rope(part);
      }
    });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[project_qkv] the CPU kernel was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorProjectQkv"; }
  bool is_equivalent(const mx::Primitive& other) const override { return params_ == static_cast<const ProjectQkv&>(other).params_; }

 private:
  // The last row's query on its own, before all rows' keys and values.
  static void set_apart(std::vector<LinearRun>& runs, std::vector<RopeRun>& turns) {
    LinearRun query = runs[0];
    query.x = static_cast<const char*>(query.x) + (query.rows - 1) * query.jobs[0].matrix.in * size_of(query.type);
    query.jobs.resize(1), query.rows = 1;
    runs[0].jobs.erase(runs[0].jobs.begin());
    runs.insert(runs.begin(), std::move(query));
    RopeRun turn = turns[0];
    turn.position += static_cast<int64_t>(turn.tokens) - 1;
    turn.tokens = turn.part_count = turns[0].part_count = 1;
    turns[0].parts[0] = turns[0].parts[1];
    turns.insert(turns.begin(), turn);
  }

  RopeRun turn(InputTaker& take, Dtype type, const mx::array& x, std::vector<mx::array>& outputs) const {
    const mx::array inv_freq = take();
    RopeRun run{};
    run.inv_freq = inv_freq.data<float>(), run.pairs = inv_freq.size();
    run.batch = static_cast<size_t>(x.shape(0)), run.tokens = static_cast<size_t>(x.shape(1));
    run.position = params_.position, run.scale = params_.attention_scale;
    for (size_t i = 0; i < 2; ++i) {
      const bool normed = i == 0 ? params_.q_norm : params_.k_norm;
      const auto weight = normed ? std::optional(take()) : std::nullopt;
      run.parts[i] = rope_part(type, static_cast<size_t>(outputs[i].shape(2)), params_.head_dim, run.pairs, weight ? &*weight : nullptr,
                               params_.head_norm_eps);
      run.parts[i].to = outputs[i].data<char>();
    }
    return run;
  }

  Params params_;
};

// Inputs: attended, residual, o's arrays, norm, the arrays of gate, up and down. Output: like residual.
class FeedForwardNode : public Node {
 public:
  FeedForwardNode(mx::Stream stream, Activation activation, float eps, std::vector<WeightFormat> formats)
      : Node(stream), activation_(activation), eps_(eps), formats_(std::move(formats)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    InputTaker take(inputs, stream());
    LinearRun out, inner, down;
    out.type = inner.type = down.type = dtype_of(inputs[1], "feed_forward");
    out.kind = down.kind = LinearKind::add, inner.kind = LinearKind::gated;
    inner.activation = activation_;
    out.x = take().data<void>();
    out.residual = take().data<void>();
    const auto next = [&take] { return take(); };
    out.jobs = {job_of(formats_[0], next)};
    inner.norm = norm_job(take, eps_);
    inner.jobs.push_back(job_of(formats_[1], next));
    inner.jobs.push_back(job_of(formats_[2], next));
    down.jobs = {job_of(formats_[3], next)};
    out.rows = inner.rows = down.rows = inputs[1].size() / out.jobs[0].matrix.out;
    make_output(outputs[0], take.encoder());
    down.jobs[0].out = outputs[0].data<void>();
    dispatch(take.encoder(), [out = std::move(out), inner = std::move(inner), down = std::move(down)]() mutable {
      const auto [h, gated] = rooms<2>({out.rows * out.jobs[0].matrix.out, out.rows * inner.jobs[0].matrix.out}, out.type);
      out.jobs[0].out = h, inner.jobs[0].out = gated;
      inner.x = h, down.x = gated, down.residual = h;
      run_linear(out);
      run_linear(inner);
      run_linear(down);
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("feed_forward").feed_forward(stream(), {eps_, formats_}, inputs, outputs);
  }
  const char* name() const override { return "TersorFeedForward"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const FeedForwardNode&>(other);
    return activation_ == o.activation_ && eps_ == o.eps_ && formats_ == o.formats_;
  }

 private:
  Activation activation_;
  float eps_;
  std::vector<WeightFormat> formats_;
};

QueryKeyValue qkv_by_parts(const mx::array& x, const RmsNorm& norm, std::span<const LinearWeight, 3> weights, const RopeParams& params,
                           int64_t position, bool last_query, const Choice& linear_choice, const Choice& rope_choice,
                           mx::StreamOrDevice s) {
  auto qkv = linear(x, weights, linear_choice, norm, s);
  auto turned = rope(qkv[0], qkv[1], params, position, rope_choice, s);
  if (last_query) turned.q = mx::slice(turned.q, {0, x.shape(1) - 1, 0}, turned.q.shape(), s);
  return {std::move(turned.q), std::move(turned.k), std::move(qkv[2])};
}

mx::Shape with_last(mx::Shape shape, int last) {
  shape.back() = last;
  return shape;
}

}  // namespace

QueryKeyValue project_qkv(const mx::array& x, const RmsNorm& norm, std::span<const LinearWeight, 3> weights, const RopeParams& params,
                          int64_t position, bool last_query, const Choice& linear_choice, const Choice& rope_choice, mx::StreamOrDevice s) {
  for (const auto& weight : weights) check_linear("project_qkv", x, weight);
  check_norm("project_qkv", norm, weights[0].in_features());
  last_query = last_query && x.ndim() == 3 && x.shape(1) > 1;
  const bool gpu = mx::default_device() == mx::Device::gpu;  // where rope goes with appending to the cache (kv_append)
  if (gpu || !linear_choice.fast || !rope_choice.fast || !x.size() || x.ndim() != 3 || (last_query && x.shape(0) > 1) ||
      !fit_one_node({&weights[0], &weights[1], &weights[2]}))
    return qkv_by_parts(x, norm, weights, params, position, last_query, linear_choice, rope_choice, s);
  std::vector<mx::array> inputs{x, norm.weight};
  ProjectQkv::Params p{{},         params.head_dim, params.q_norm.has_value(), params.k_norm.has_value(),
                       last_query, norm.eps,        params.norm_eps,           params.attention_scale,
                       position};
  std::vector<mx::Shape> shapes;
  for (const auto& weight : weights) {
    p.formats.emplace_back(weight);
    add_inputs(weight, inputs);
    shapes.push_back(with_last(x.shape(), weight.out_features()));
  }
  check_rope(shapes[0], shapes[1], params, position);
  if (last_query) shapes[0][1] = 1;
  inputs.push_back(params.inv_freq);
  if (params.q_norm) inputs.push_back(*params.q_norm);
  if (params.k_norm) inputs.push_back(*params.k_norm);
  auto out = mx::array::make_arrays(std::move(shapes), {x.dtype(), x.dtype(), x.dtype()},
                                    std::make_shared<ProjectQkv>(mx::to_stream(s), std::move(p)), inputs);
  return {std::move(out[0]), std::move(out[1]), std::move(out[2])};
}

mx::array feed_forward(const mx::array& attended, const mx::array& residual, const FeedForward& layer, const Choice& choice,
                       mx::StreamOrDevice s) {
  check_linear("feed_forward", attended, layer.o);
  for (const auto* weight : {&layer.gate, &layer.up}) check_linear("feed_forward", residual, *weight);
  check_norm("feed_forward", layer.norm, layer.gate.in_features());
  check_weight("feed_forward", layer.down);
  const bool fits = layer.gate.out_features() == layer.up.out_features() && layer.down.in_features() == layer.gate.out_features() &&
                    layer.down.out_features() == residual.shape(-1) && layer.o.out_features() == residual.shape(-1) &&
                    attended.dtype() == residual.dtype() && with_last(attended.shape(), 1) == with_last(residual.shape(), 1);
  if (!fits) throw std::invalid_argument("[feed_forward] the shapes of its arrays and weights do not fit each other");
  bool whole = choice.fast && residual.size() && fit_one_node({&layer.gate, &layer.up}) && gpu_takes(layer.activation);
  for (const auto* weight : {&layer.o, &layer.gate, &layer.up, &layer.down})
    whole = whole && fit_one_node({weight}) && gpu_takes_rows(residual, *weight);
  if (!whole) {
    const mx::array h = linear_add(attended, layer.o, residual, choice, s);
    return linear_add(linear_gated(h, layer.gate, layer.up, layer.activation, choice, layer.norm, s), layer.down, h, choice, s);
  }
  std::vector<mx::array> inputs{attended, residual};
  add_inputs(layer.o, inputs);
  inputs.push_back(layer.norm.weight);
  std::vector<WeightFormat> formats{WeightFormat(layer.o)};
  for (const auto* weight : {&layer.gate, &layer.up, &layer.down}) {
    formats.emplace_back(*weight);
    add_inputs(*weight, inputs);
  }
  return mx::array(residual.shape(), residual.dtype(),
                   std::make_shared<FeedForwardNode>(mx::to_stream(s), layer.activation, layer.norm.eps, std::move(formats)),
                   std::move(inputs));
}

}  // namespace tersor::ops
