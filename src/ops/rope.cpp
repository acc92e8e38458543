#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "base/thread_pool.h"
#include "kernels/cpu/norm_rope.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

// Numbers below which a parallel region costs more than it saves.
constexpr size_t kTaskNumbers = 8192;

// Queries or keys: [batch * tokens, heads * head_dim] and how their heads turn.
struct Part {
  kernels::RopeHeads heads;
  const char* from;
  char* to;
  size_t count;  // heads of a token
};

struct Work {
  Part parts[2];
  const float* inv_freq;
  size_t pairs, batch, tokens;
  int64_t position;
  float scale;
};

void run_rope(const Work& work) {
  ThreadPool& pool = ThreadPool::instance();
  const size_t width = 2 * work.pairs, head_dim = work.parts[0].heads.head_dim, all = work.batch * work.tokens;
  float* const table = workspace(work.tokens * width + pool.size() * head_dim);
  float* const scratch = table + work.tokens * width;
  const size_t numbers = (work.parts[0].count + work.parts[1].count) * head_dim, step = std::max<size_t>(1, kTaskNumbers / numbers);
  pool.run((work.tokens + step - 1) / step, [&](size_t task, size_t) {
    const size_t first = task * step, count = std::min(step, work.tokens - first);
    kernels::rope_table(work.inv_freq, work.pairs, work.position + static_cast<int64_t>(first), count, work.scale, table + first * width);
  });
  pool.run((all + step - 1) / step, [&](size_t task, size_t worker) {
    for (size_t t = task * step; t < std::min(all, task * step + step); ++t) {
      for (const Part& part : work.parts) {
        const size_t offset = t * part.count * head_dim * size_of(part.heads.type);
        kernels::rope_token(part.heads, part.from + offset, table + t % work.tokens * width, part.to + offset, part.count,
                            scratch + worker * head_dim);
      }
    }
  });
}

// Inputs: q, k, inv_freq, (q_norm), (k_norm). Outputs: q, k.
class Rope : public mx::Primitive {
 public:
  struct Params {
    int head_dim;
    bool q_norm, k_norm;
    float attention_scale, eps;
    int64_t position;
    bool operator==(const Params&) const = default;
  };
  Rope(mx::Stream stream, Params params) : mx::Primitive(stream), params_(params) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> in;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      in.push_back(row_contiguous(input, encoder));
    }
    Work work{};
    work.inv_freq = in[2].data<float>();
    work.pairs = in[2].size();
    work.batch = static_cast<size_t>(in[0].shape(0)), work.tokens = static_cast<size_t>(in[0].shape(1));
    work.position = params_.position, work.scale = params_.attention_scale;
    for (size_t i = 0, norm = 3; i < 2; ++i) {
      outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      encoder.set_output_array(outputs[i]);
      const bool normed = i == 0 ? params_.q_norm : params_.k_norm;
      work.parts[i] = part(in[i], outputs[i], normed ? &in[norm++] : nullptr, work.pairs);
    }
    encoder.dispatch([work] { run_rope(work); });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[rope] the CPU kernel was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorRope"; }
  bool is_equivalent(const mx::Primitive& other) const override { return params_ == static_cast<const Rope&>(other).params_; }

 private:
  Part part(const mx::array& x, mx::array& out, const mx::array* norm, size_t pairs) const {
    const auto head_dim = static_cast<size_t>(params_.head_dim);
    Part p{{dtype_of(x, "rope"), head_dim, pairs, nullptr, Dtype::f32, params_.eps},
           x.data<char>(),
           out.data<char>(),
           static_cast<size_t>(x.shape(2)) / head_dim};
    if (norm) p.heads.norm = norm->data<void>(), p.heads.norm_type = dtype_of(*norm, "rope");
    return p;
  }

  Params params_;
};

void check(const mx::array& q, const mx::array& k, const RopeParams& p, int64_t position) {
  const auto fail = [&](const auto&... parts) {
    std::ostringstream text;
    text << "[rope] ";
    (text << ... << parts);
    throw std::invalid_argument(text.str());
  };
  if (p.head_dim <= 0) fail("head_dim must be positive, not ", p.head_dim);
  for (const auto* x : {&q, &k}) {
    dtype_of(*x, "rope");
    if (x->ndim() != 3 || x->shape(2) % p.head_dim)
      fail("q and k must be [batch, tokens, heads * ", p.head_dim, "]; got ", q.shape(), " and ", k.shape());
  }
  if (q.shape(0) != k.shape(0) || q.shape(1) != k.shape(1))
    fail("q and k must have equally many batches and tokens; got ", q.shape(), " and ", k.shape());
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

}  // namespace

QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, const Choice& choice,
              mx::StreamOrDevice s) {
  check(q, k, params, position);
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
