// Linear layers: which kernel takes how many rows, which weights go together in one launch, and the memory that parts of k meet in.
#include "kernels/cuda/linear.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "ops/cuda/chain.h"
#include "ops/cuda/rows.h"

namespace tersor::ops::cuda {
namespace {

using kernels::cuda::Launch, kernels::cuda::LinearOutput, kernels::cuda::LinearProblem, kernels::cuda::LinearRowsPlan,
    kernels::cuda::PackedLinear, kernels::cuda::kLinearNormRows, kernels::cuda::kLinearRowsMost;

/// A weight as a call lists it.
struct Weight {
  const WeightFormat* format;
  std::optional<mx::array> dense, bias;
  int out() const { return format->packed ? format->packed->out : dense->shape(0); }
  int in() const { return format->packed ? format->packed->in : dense->shape(1); }
  PackedLinear shape() const {
    if (!format->packed) return {0, 0, type_of(*dense), in(), 0, false};
    const auto& p = *format->packed;
    return {format->bits, format->group, p.type, p.in, kernels::cuda::linear_strips(p.out, p.paired), p.paired};
  }
};

/// Takes a call's arrays one after the other.
struct Inputs {
  const std::vector<mx::array>& all;
  size_t next = 0;
  const mx::array& operator()() { return all[next++]; }
  Weight weight(const WeightFormat& format) {
    Weight w{&format, {}, {}};
    if (!format.packed) w.dense = (*this)();
    if (format.bias) w.bias = (*this)();
    return w;
  }
};

struct Norm {
  const mx::array* weight;
  float eps;
};

/// One launch's worth: weights that go together and their outputs, and the arrays that MLX's graph has to know of.
struct Group {
  std::vector<const Weight*> weights;
  std::vector<mx::array*> outputs;
};

struct Run {
  Encoder& encoder;
  mx::Stream stream;
  LinearKind kind;
  const mx::array* residual;
  bool after_attention = false;  // which leaves memory idle for long enough to send for many weights, and its query unharmed
};

LinearProblem problem_of(const Run& run, const Group& group, const mx::array& x, const Norm* norm) {
  LinearProblem p;
  p.weight = group.weights[0]->shape();
  p.packed = group.weights[0]->format->packed ? group.weights[0]->format->packed->data.get() : nullptr;
  p.x = mx::gpu_ptr<char>(x), p.x_stride = p.weight.k, p.x_type = type_of(x), p.y_type = type_of(*group.outputs[0]);
  p.rows = static_cast<int>(static_cast<long long>(x.size()) / p.weight.k);
  if (norm) p.norm = mx::gpu_ptr<char>(*norm->weight), p.norm_type = type_of(*norm->weight), p.norm_eps = norm->eps;
  p.multiprocessors = processors(run.encoder);
  p.weight.paired = run.kind == LinearKind::gated;
  p.weight.strips = 0;
  for (size_t i = 0; i < group.outputs.size(); ++i) {
    const Weight& w = *group.weights[i];
    LinearOutput& out = p.outputs[p.output_count++];
    out.y = mx::gpu_ptr<char>(*group.outputs[i]);
    out.bias = w.bias ? mx::gpu_ptr<char>(*w.bias) : nullptr;
    if (p.weight.paired && group.weights[1]->bias) out.bias_up = mx::gpu_ptr<char>(*group.weights[1]->bias);
    out.residual = run.residual ? mx::gpu_ptr<char>(*run.residual) : nullptr;
    out.stride = out.columns = w.out();
    out.first_strip = p.weight.strips;
    p.weight.strips += kernels::cuda::linear_strips(w.out(), p.weight.paired);
  }
  return p;
}

// The same for rows [first, first + count).
LinearProblem rows_of_problem(const LinearProblem& all, int first, int count) {
  LinearProblem p = all;
  const auto step = [&](const void* at, long long stride, Dtype type) {
    return at ? static_cast<const char*>(at) + first * stride * static_cast<long long>(size_of(type)) : nullptr;
  };
  p.rows = count, p.x = step(p.x, p.x_stride, p.x_type);
  for (int i = 0; i < p.output_count; ++i) {
    p.outputs[i].y = const_cast<char*>(step(p.outputs[i].y, p.outputs[i].stride, p.y_type));
    p.outputs[i].residual = step(p.outputs[i].residual, p.outputs[i].stride, p.y_type);
  }
  return p;
}

// Plans take microseconds to make and depend on little.
LinearRowsPlan rows_plan(const LinearProblem& p) {
  using Key = std::tuple<int, int, Dtype, int, int, int, bool>;
  static std::mutex mutex;
  static std::map<Key, LinearRowsPlan> plans;
  const Key key{p.weight.bits, p.weight.group, p.weight.scale_type, p.weight.k, p.weight.strips, p.rows, p.weight.paired};
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = plans.emplace(key, LinearRowsPlan{});
  if (fresh) at->second = kernels::cuda::linear_rows_plan(p);
  return at->second;
}

void* workspace(const Run& run, size_t bytes) {
  if (bytes == 0) return nullptr;
  const Scratch memory = scratch(run.encoder, run.stream, (bytes - kernels::cuda::kTicketBytes) / sizeof(float),
                                 kernels::cuda::kTicketBytes / sizeof(unsigned));
  return reinterpret_cast<char*>(memory.partials) - kernels::cuda::kTicketBytes;
}

template <class Params>
void add(const Run& run, const Launch& launch, const Params* params, const Group& group, const mx::array& x, const Norm* norm) {
  std::vector<mx::array> inputs, outputs;
  if (!launch.function) throw std::runtime_error("[linear] there is no kernel for the problem that was chosen for it");
  if (!in_chain()) {
    inputs = {x};
    if (norm) inputs.push_back(*norm->weight);
    if (run.residual) inputs.push_back(*run.residual);
    for (const Weight* w : group.weights) {
      if (w->dense) inputs.push_back(*w->dense);
      if (w->bias) inputs.push_back(*w->bias);
    }
    for (const mx::array* out : group.outputs) outputs.push_back(*out);
  }
  add_kernel(run.encoder, launch, params, inputs, outputs);
}

void few_rows(const Run& run, LinearProblem p, const Group& group, const mx::array& x, const Norm* norm) {
  if (p.weight.bits == 0) {
    const void* dense[kernels::cuda::kLinearOutputs] = {};
    for (size_t i = 0; i < group.weights.size(); ++i) dense[i] = mx::gpu_ptr<char>(*group.weights[i]->dense);
    kernels::cuda::LinearDenseParams params;
    p.workspace = workspace(run, kernels::cuda::linear_dense_workspace(p));
    return add(run, kernels::cuda::linear_dense(p, dense, &params), &params, group, x, norm);
  }
  LinearRowsPlan plan = rows_plan(p);
  if (run.after_attention) plan.early = plan.stages;
  p.workspace = workspace(run, kernels::cuda::linear_rows_workspace(p, plan));
  kernels::cuda::LinearRowsParams params;
  add(run, kernels::cuda::linear_rows(p, &params, plan), &params, group, x, norm);
}

bool tiles_take(const LinearProblem& p) {
  return p.weight.bits != 0 && p.rows > kLinearRowsMost && p.x_type == p.y_type && p.weight.scale_type == p.x_type;
}

// x is dense rows; the norm is one that the kernels apply.
void run_group(const Run& run, const Group& group, const mx::array& x, const Norm* norm) {
  const LinearProblem all = problem_of(run, group, x, norm);
  if (tiles_take(all)) {
    LinearProblem p = all;
    p.workspace = workspace(run, kernels::cuda::linear_tiles_workspace(p));
    kernels::cuda::LinearTilesParams params;
    return add(run, kernels::cuda::linear_tiles(p, &params), &params, group, x, norm);
  }
  for (int first = 0; first < all.rows; first += kLinearRowsMost)
    few_rows(run, rows_of_problem(all, first, std::min(kLinearRowsMost, all.rows - first)), group, x, norm);
}

// Whether b's strips follow a's, so that one launch takes both.
bool follows(const Weight& a, const Weight& b) {
  if (a.dense || b.dense) return a.dense && b.dense && a.dense->dtype() == b.dense->dtype();
  const PackedLinear x = a.shape(), y = b.shape();
  return x.bits == y.bits && x.group == y.group && x.scale_type == y.scale_type && x.k == y.k &&
         a.format->packed->data.get() + kernels::cuda::linear_packed_bytes(x) == b.format->packed->data.get();
}

void check_weights(const Run& run, const std::vector<Weight>& weights, const std::vector<mx::array>& outputs) {
  const bool pair = run.kind == LinearKind::gated;
  for (const Weight& w : weights) {
    if (w.format->packed && w.format->packed->paired != pair)
      throw std::runtime_error(pair ? "[linear_gated] gate and up must have been packed as a pair"
                                    : "[linear] a weight that was packed as one of a pair only runs with its partner");
    if (w.bias && w.bias->dtype() != outputs[0].dtype()) throw std::runtime_error("[linear] a bias must have the results' type");
  }
  if (pair && weights[0].format->packed && weights[0].format->packed->data != weights[1].format->packed->data)
    throw std::runtime_error("[linear_gated] gate and up are not of one pair");
}

// All weights of a call; outputs are allocated.
void run_linear(Run run, const mx::array& x, const Norm* norm, const std::vector<Weight>& weights, std::vector<mx::array>& outputs) {
  check_weights(run, weights, outputs);
  mx::array rows = dense_rows(run.encoder, x);
  std::optional<mx::array> weight, residual;
  if (norm) weight = dense_rows(run.encoder, *norm->weight);
  if (run.residual) residual = dense_rows(run.encoder, *run.residual), run.residual = &*residual;
  Norm of_rows{weight ? &*weight : nullptr, norm ? norm->eps : 0};
  if (norm && static_cast<long long>(x.size()) / weights[0].in() > kLinearNormRows) {
    mx::array normed = temporary(run.encoder, x.shape(), x.dtype());
    norm_rows(run.encoder, rows, *weight, norm->eps, normed);
    rows = normed, of_rows.weight = nullptr;
  }
  const Norm* const fused = of_rows.weight ? &of_rows : nullptr;
  if (run.kind == LinearKind::gated) return run_group(run, {{&weights[0], &weights[1]}, {&outputs[0]}}, rows, fused);
  for (size_t i = 0; i < weights.size();) {
    Group group;
    do {
      group.weights.push_back(&weights[i]), group.outputs.push_back(&outputs[i]);
      ++i;
    } while (i < weights.size() && group.weights.size() < kernels::cuda::kLinearOutputs && follows(weights[i - 1], weights[i]));
    run_group(run, group, rows, fused);
  }
}

}  // namespace

bool linear_supports(int bits, int group, Dtype weight, Dtype x) {
  if (x == Dtype::f32) return false;
  if (bits == 0) return weight == x;
  return kernels::cuda::linear_supported({bits, group, x, group, 1, false});
}

void linear(mx::Stream stream, const GpuLinearCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  Inputs take{inputs};
  const mx::array& x = take();
  const Norm norm{call.norm_eps ? &take() : nullptr, call.norm_eps.value_or(0)};
  const mx::array* residual = call.kind == LinearKind::add ? &take() : nullptr;
  std::vector<Weight> weights;
  for (const WeightFormat& format : call.formats) weights.push_back(take.weight(format));
  for (mx::array& output : outputs) allocate(output);
  run_linear({mx::cu::get_command_encoder(stream), stream, call.kind, residual}, x, norm.weight ? &norm : nullptr, weights, outputs);
}

void feed_forward(mx::Stream stream, const GpuFeedForwardCall& call, const std::vector<mx::array>& inputs,
                  std::vector<mx::array>& outputs) {
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  Inputs take{inputs};
  const mx::array &attended = take(), &residual = take();
  const Weight o = take.weight(call.formats[0]);
  const Norm norm{&take(), call.norm_eps};
  const Weight gate = take.weight(call.formats[1]), up = take.weight(call.formats[2]), down = take.weight(call.formats[3]);
  allocate(outputs[0]);
  mx::Shape inner = residual.shape();
  inner.back() = gate.out();
  std::vector<mx::array> h{temporary(encoder, residual.shape(), residual.dtype())}, gated{temporary(encoder, inner, residual.dtype())};
  run_linear({encoder, stream, LinearKind::add, &residual, true}, attended, nullptr, {o}, h);
  run_linear({encoder, stream, LinearKind::gated, nullptr}, h[0], &norm, {gate, up}, gated);
  run_linear({encoder, stream, LinearKind::add, &h[0]}, gated[0], nullptr, {down}, outputs);
}

}  // namespace tersor::ops::cuda
