#include "kernels/cuda/kv_attend.h"
#include "kernels/cuda/kv_prefill.h"

#include <mlx/allocator.h>

#include <stdexcept>

#include "ops/cuda/kv_params.h"

namespace tersor::ops::cuda {
namespace {

using kernels::cuda::AttendParams, kernels::cuda::AttendSegment;

AttendSegment segment_of(const KvSource& source, const mx::array& slab) {
  const KvFormat& format = *source.format;
  AttendSegment segment;
  segment.tiles = mx::gpu_ptr<uint8_t>(slab);
  segment.head_stride = format.head_bytes(source.capacity), segment.batch_stride = segment.head_stride * format.heads;
  segment.first = static_cast<int>(source.first), segment.end = static_cast<int>(source.first + source.count);
  segment.lo_abs = clamped(source.lo_abs), segment.lo_rel = clamped(source.lo_rel);
  segment.hi_abs = clamped(source.hi_abs), segment.hi_rel = clamped(source.hi_rel);
  segment.full = format.keys.family == codec::Family::full;
  return segment;
}

// The body's codes: those of a compressed source, if there is one.
const KvFormat& body_of(const KvAttendCall& call) {
  for (const KvSource& source : call.sources)
    if (source.format->keys.family != codec::Family::full) return *source.format;
  return *call.sources.front().format;
}

AttendParams params_of(const KvAttendCall& call, const std::vector<mx::array>& inputs, mx::array& out) {
  const KvFormat& body = body_of(call);
  const RowShape& shape = call.queries;
  AttendParams p;
  p.batch = body.batch, p.kv_heads = body.heads, p.group = static_cast<int>(shape.heads) / body.heads,
  p.rows = static_cast<int>(shape.tokens);
  p.position = static_cast<int>(call.position), p.causal = call.causal, p.sliding_window = clamped(call.sliding_window);
  p.scale = call.scale, p.soft_cap = call.soft_cap;
  p.queries = rows_on_device(inputs[0], shape);
  const PreparedFormat& codes = prepared(body);
  p.key_levels = codes.levels[0], p.value_levels = codes.levels[1];
  p.key_rotation = codes.rotations[0], p.value_rotation = codes.rotations[1];
  p.out = mx::gpu_ptr<char>(out);
  p.out_batch_stride = shape.heads * shape.tokens * call.value_dim;
  p.out_head_stride = shape.tokens_major ? call.value_dim : shape.tokens * call.value_dim;
  p.out_token_stride = shape.tokens_major ? shape.heads * call.value_dim : call.value_dim;
  for (size_t i = 0; i < call.sources.size(); ++i) {
    const KvSource& source = call.sources[i];
    if (source.format->keys.family == codec::Family::full) p.full_type = number_of(source.format->keys.dtype);
    p.segments[p.segment_count++] = segment_of(source, inputs[1 + i]);
  }
  size_t next = 1 + call.sources.size();
  if (call.has_mask) {
    const mx::array& mask = inputs[next++];
    p.mask = mx::gpu_ptr<float>(mask);
    for (int i = 0; i < 4; ++i) p.mask_strides[i] = mask.shape(i) == 1 ? 0 : mask.strides()[i];
  }
  if (call.has_sinks) p.sinks = mx::gpu_ptr<float>(inputs[next]);
  return p;
}

// Long chunks are cut, so that rows do not walk over tiles that only later rows see, and the grid stays within bounds.
int rows_at_once(const AttendParams& p) {
  constexpr int kRows = 256, kMostBlocks = 65535, kVectors = 4;
  return std::clamp(kMostBlocks / p.kv_heads * kVectors / p.group - 1, 1, kRows);
}

// Rows [first, first + count) of a call.
AttendParams rows_of_params(const AttendParams& all, int first, int count, size_t number_bytes) {
  AttendParams p = all;
  const auto bytes = static_cast<int64_t>(number_bytes);
  p.rows = count, p.position += first;
  p.queries.data = static_cast<const char*>(p.queries.data) + first * p.queries.token_stride * bytes;
  p.out = static_cast<char*>(p.out) + first * p.out_token_stride * bytes;
  if (p.mask != nullptr) p.mask += first * p.mask_strides[2];
  return p;
}

}  // namespace

void kv_attend(mx::Stream stream, const KvAttendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (call.sources.size() > kernels::cuda::kMaxSegments)
    throw std::runtime_error("[kv_attend] " + std::to_string(call.sources.size()) + " slabs are more than the " +
                             std::to_string(kernels::cuda::kMaxSegments) + " that a kernel reads; join them");
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  // A block writes outputs only after all blocks with the same rows have read their queries, so the two may share memory.
  take_or_allocate(outputs[0], inputs[0]);
  allocate(outputs[1]);
  const AttendParams all = params_of(call, inputs, outputs[0]);
  const KvFormat& body = body_of(call);
  const PreparedFormat& codes = prepared(body);
  kernels::cuda::PrefillParams many{all};
  const auto launch = kernels::cuda::prefill_plan(many, codes.codes[0], codes.codes[1], call.value_dim, processors(encoder));
  if (launch.function != nullptr) return add_kernel(encoder, launch, &many, inputs, outputs);
  const int step = rows_at_once(all);
  for (int row = 0; row < all.rows; row += step) {
    AttendParams p = rows_of_params(all, row, std::min(step, all.rows - row), outputs[0].itemsize());
    const auto plan = kernels::cuda::attend_plan(p, codes.codes[0], codes.codes[1], call.value_dim, processors(encoder));
    const Scratch memory = scratch(encoder, stream, plan.partial_floats, plan.tickets);
    p.partials = memory.partials, p.tickets = memory.tickets;
    add_kernel(encoder, plan.launch, &p, inputs, outputs);
  }
}

}  // namespace tersor::ops::cuda
