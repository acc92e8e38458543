#include "kernels/cpu/kv_attend.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/thread_pool.h"
#include "ops/gpu_plugin.h"
#include "ops/kv_calls.h"
#include "ops/node.h"
#include "ops/kv_visibility.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

kernels::MaskKind mask_kind(mx::Dtype type) {
  if (type == mx::bool_) return kernels::MaskKind::boolean;
  if (type == mx::float16) return kernels::MaskKind::f16;
  if (type == mx::bfloat16) return kernels::MaskKind::bf16;
  return kernels::MaskKind::f32;
}

kernels::KvSegment segment_of(const KvSource& source, const mx::array& slab) {
  kernels::KvSegment segment;
  const KvFormat& format = *source.format;
  segment.lo_abs = source.lo_abs, segment.lo_rel = source.lo_rel, segment.hi_abs = source.hi_abs, segment.hi_rel = source.hi_rel;
  segment.keys = &format.keys, segment.values = &format.values;
  segment.blocks = slab.data<uint8_t>();
  segment.head_stride = format.head_bytes(source.capacity);
  segment.batch_stride = segment.head_stride * format.heads;
  segment.values_offset = format.values_offset(source.capacity);
  segment.first = source.first, segment.count = source.count;
  return segment;
}

// Runs the plan on the pool: items, then merges.
void run(const kernels::KvAttend& params) {
  ThreadPool& pool = ThreadPool::instance();
  const auto plan = kernels::kv_attend_plan(params, pool.size());
  float* const scratch = workspace(plan.worker_floats * pool.size() + plan.partial_floats);
  float* const partials = scratch + plan.worker_floats * pool.size();
  pool.run(plan.items, [&](size_t item, size_t worker) {
    kernels::kv_attend_item(params, plan, item, scratch + worker * plan.worker_floats, partials);
  });
  pool.run(plan.merges, [&](size_t merge, size_t worker) {
    kernels::kv_attend_merge(params, plan, merge, scratch + worker * plan.worker_floats, partials);
  });
}

class KvAttend : public Node {
 public:
  KvAttend(mx::Stream stream, KvAttendCall call) : Node(stream), call_(std::move(call)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (auto& output : outputs) output.set_data(mx::allocator::malloc(output.nbytes()));
    const mx::array q = contiguous_rows(inputs[0], encoder);
    encoder.add_temporary(q);
    kernels::KvAttend p = params(q, outputs[0]);
    std::vector<kernels::KvSegment> segments;
    for (size_t i = 0; i < call_.sources.size(); ++i) segments.push_back(segment_of(call_.sources[i], inputs[1 + i]));
    size_t next = 1 + call_.sources.size();
    if (call_.has_mask) set_mask(p, inputs[next++]);
    if (call_.has_sinks) p.sinks = inputs[next].data<float>();
    dispatch(encoder, [p, segments = std::move(segments), sources = call_.sources, ticket = outputs[1].data<uint8_t>()](Later later) {
      kernels::KvAttend now = p;
      std::vector<kernels::KvSegment> grown = segments;
      for (size_t i = 0; i < grown.size(); ++i)
        if (sources[i].grows) grown[i].count += later.tokens;
      now.position += later.tokens;
      now.segments = grown.data(), now.segment_count = grown.size();
      run(now);
      *ticket = 1;
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("kv_attend").kv_attend(stream(), call_, inputs, outputs);
  }
  const char* name() const override { return "TersorKvAttend"; }
  bool repeats() const override { return !call_.has_mask; }  // whose width is the number of tokens

 private:
  kernels::KvAttend params(const mx::array& q, mx::array& out) const {
    const KvFormat& format = *call_.sources[0].format;
    const RowShape& shape = call_.queries;
    kernels::KvAttend p;
    p.batch = shape.batch, p.heads = shape.heads, p.kv_heads = format.heads, p.rows = shape.tokens;
    p.key_dim = static_cast<int>(shape.dim), p.value_dim = call_.value_dim;
    p.queries = rows_of(q, shape);
    p.out = out.data<void>();
    p.out_batch_stride = shape.heads * shape.tokens * call_.value_dim;
    p.out_head_stride = shape.tokens_major ? call_.value_dim : shape.tokens * call_.value_dim;
    p.out_token_stride = shape.tokens_major ? shape.heads * call_.value_dim : call_.value_dim;
    const KvBasis& basis = *format.basis;
    p.key_rotation = basis.key_rotation, p.value_rotation = basis.value_rotation;
    p.key_map = basis.key_map ? &*basis.key_map : nullptr, p.value_map = basis.value_map ? &*basis.value_map : nullptr;
    if (basis.key_codecs.size() > 1) p.key_codecs = basis.key_codecs.data();
    if (basis.value_codecs.size() > 1) p.value_codecs = basis.value_codecs.data();
    p.scale = call_.scale, p.soft_cap = call_.soft_cap;
    p.exact = call_.exact;
    p.causal = call_.causal, p.sliding_window = call_.sliding_window, p.position = call_.position;
    return p;
  }
  void set_mask(kernels::KvAttend& p, const mx::array& mask) const {
    p.mask_kind = mask_kind(mask.dtype());
    p.mask = mask.data<void>();
    for (int i = 0; i < 4; ++i) p.mask_strides[i] = mask.shape(i) == 1 ? 0 : mask.strides()[i];
  }
  KvAttendCall call_;
};

KvSource source_of(const KvRead& read) {
  const KvSlab& slab = *read.slab;
  KvSource source{slab.format, slab.capacity, slab.first, slab.count, read.grows};
  source.lo_abs = read.lo_abs.value_or(source.lo_abs);
  source.lo_rel = read.lo_rel.value_or(source.lo_rel);
  if (read.hi_abs || read.hi_rel) source.hi_abs = read.hi_abs.value_or(KvSource::kUnset);
  source.hi_rel = read.hi_rel.value_or(source.hi_rel);
  return source;
}

// GPU kernels add the mask to logits in float.
mx::array additive(const mx::array& mask, mx::StreamOrDevice s) {
  if (mask.dtype() != mx::bool_) return mx::astype(mask, mx::float32, s);
  return mx::where(mask, mx::array(0.0f), mx::array(-std::numeric_limits<float>::infinity()), s);
}

}  // namespace

KvAttended kv_attend(const mx::array& q, std::span<const KvRead> reads, const AttendOptions& options, int64_t position,
                     const Choice& choice, const std::optional<mx::array>& earlier, mx::StreamOrDevice s) {
  if (reads.empty()) throw std::invalid_argument("[kv_attend] the cache is empty: append keys and values first");
  const KvFormat& format = *reads[0].slab->format;
  const RowShape queries = RowShape::of(q, 0, format.keys.dim, "kv_attend", "q");
  if (queries.batch != format.batch || queries.heads % format.heads != 0)
    throw std::invalid_argument("[kv_attend] q must have the cache's batch size " + std::to_string(format.batch) +
                                " and a multiple of its " + std::to_string(format.heads) + " heads");
  dtype_of(q, "kv_attend");
  if (options.sinks && (options.sinks->ndim() != 1 || options.sinks->shape(0) != queries.heads))
    throw std::invalid_argument("[kv_attend] sinks must have one logit for each of the " + std::to_string(queries.heads) + " query heads");
  if (!choice.fast) {
    KvAttended result = kv_attend_composed(q, reads, options, position, s);
    if (earlier) result.ticket = mx::maximum(*earlier, result.ticket, s);
    return result;
  }

  KvAttendCall call{{},
                    queries,
                    format.values.dim,
                    options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(queries.dim)),
                    options.soft_cap,
                    choice.precision == Precision::exact,
                    options.causal,
                    options.mask.has_value(),
                    options.sinks.has_value(),
                    options.sliding_window,
                    position};
  std::vector<mx::array> inputs{q};
  for (const KvRead& read : reads) {
    inputs.push_back(read.slab->data);
    call.sources.push_back(source_of(read));
  }
  if (options.mask) {
    const mx::array mask = checked_mask(*options.mask, queries, total_tokens(reads), s);
    inputs.push_back(format.fragments() ? additive(mask, s) : mask);
  }
  if (options.sinks) inputs.push_back(mx::contiguous(mx::astype(*options.sinks, mx::float32, s), false, s));
  if (earlier) inputs.push_back(*earlier);
  const mx::Shape shape = queries.with_dim(format.values.dim);
  auto outputs =
      mx::array::make_arrays({shape, {1}}, {q.dtype(), mx::uint8}, std::make_shared<KvAttend>(mx::to_stream(s), std::move(call)), inputs);
  return {outputs[0], outputs[1]};
}

}  // namespace tersor::ops
