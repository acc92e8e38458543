#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <algorithm>
#include <stdexcept>

#include "base/thread_pool.h"
#include "kernels/cpu/kv_encode.h"
#include "ops/gpu_plugin.h"
#include "ops/kv_calls.h"
#include "ops/node.h"

namespace tersor::ops {
namespace {

kernels::KvEncode encode_params(const KvTarget& target, bool keys, kernels::KvRows rows, uint8_t* slab, const float* centre) {
  const KvFormat& format = *target.format;
  kernels::KvEncode p;
  p.layout = keys ? &format.keys : &format.values;
  p.rotation = keys ? format.basis->key_rotation : format.basis->value_rotation;
  const KvBasis::Codecs& codecs = keys ? format.basis->key_codecs : format.basis->value_codecs;
  if (codecs.size() > 1 && p.layout->family != codec::Family::full) p.codecs = codecs.data();
  if (const auto& map = keys ? format.basis->key_map : format.basis->value_map; map && p.layout->family != codec::Family::full)
    p.map = &*map;
  p.centre = keys ? centre : nullptr;
  p.sanitise = format.sanitise;
  rows.data = rows.row(0, 0, target.begin);
  p.rows = rows;
  p.batch = format.batch, p.heads = format.heads, p.tokens = target.count;
  p.head_stride = format.head_bytes(target.capacity);
  p.batch_stride = p.head_stride * format.heads;
  p.blocks = slab + (keys ? 0 : format.values_offset(target.capacity));
  p.first = target.at;
  return p;
}

class KvAppend : public Node {
 public:
  KvAppend(mx::Stream stream, KvAppendCall call) : Node(stream), call_(std::move(call)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const mx::array k = contiguous_rows(inputs[0], encoder), v = contiguous_rows(inputs[1], encoder);
    encoder.add_temporaries({k, v});
    const float* const centre = call_.centred ? inputs[2 + call_.targets.size()].data<float>() : nullptr;
    std::vector<kernels::KvEncode> jobs;
    for (size_t i = 0; i < call_.targets.size(); ++i) {
      outputs[i].copy_shared_buffer(inputs[2 + i]);
      uint8_t* slab = outputs[i].data<uint8_t>();
      const KvTarget& target = call_.targets[i];
      if (target.keys) jobs.push_back(encode_params(target, true, rows_of(k, call_.keys), slab, centre));
      if (target.values) jobs.push_back(encode_params(target, false, rows_of(v, call_.values), slab, centre));
    }
    // The formats must outlive the work.
    dispatch(encoder, [first = std::move(jobs), targets = call_.targets](Later later) {
      auto jobs = first;
      for (auto& job : jobs) job.first += later.tokens;
      std::vector<size_t> ends;
      size_t total = 0;
      for (const auto& job : jobs) ends.push_back(total += kernels::kv_encode_tasks(job));
      const auto one = [&](size_t task, size_t) {
        size_t job = 0;
        while (task >= ends[job]) ++job;
        kernels::kv_encode_task(jobs[job], task - (job ? ends[job - 1] : 0));
      };
      ThreadPool::instance().run(total, one);
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("kv_append").kv_append(stream(), call_, inputs, outputs);
  }
  const char* name() const override { return "TersorKvAppend"; }
  int memory_of(int output) const override { return output < static_cast<int>(call_.targets.size()) ? 2 + output : -1; }

 private:
  KvAppendCall call_;
};

// Writes run side by side, so no two may share a slab.
void check_writes(std::span<const KvWrite> writes, int64_t tokens) {
  for (size_t i = 0; i < writes.size(); ++i) {
    const KvWrite& write = writes[i];
    if (write.at < 0 || write.count < 0 || write.at + write.count > write.slab->capacity || write.begin < 0 ||
        write.begin + write.count > tokens)
      throw std::invalid_argument("[kv_append] write outside the slab or the new tokens");
    if (const int64_t group = write.slab->format->key_group(); write.writes(codec::Role::keys) && (write.at % group || write.count % group))
      throw std::invalid_argument("[kv_append] keys of this codec are written in whole groups of " + std::to_string(group) + " tokens");
    for (size_t j = 0; j < i; ++j)
      if (writes[j].slab == write.slab) throw std::invalid_argument("[kv_append] two writes to one slab; merge them or append twice");
  }
}

KvAppendCall checked_call(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v) {
  const KvFormat& format = *writes[0].slab->format;
  const RowShape keys = RowShape::of(k, format.heads, format.keys.dim, "kv_append", "k");
  const bool has_values = std::any_of(writes.begin(), writes.end(), [](const KvWrite& w) { return w.writes(codec::Role::values); });
  const RowShape values = has_values ? RowShape::of(v, format.heads, format.values.dim, "kv_append", "v") : keys;
  if (keys.batch != format.batch || values.batch != format.batch || keys.tokens != values.tokens)
    throw std::invalid_argument("[kv_append] k and v must have the cache's batch size " + std::to_string(format.batch) +
                                " and equally many tokens");
  dtype_of(k, "kv_append"), dtype_of(v, "kv_append");
  check_writes(writes, keys.tokens);
  KvAppendCall call{{}, keys, values};
  for (const KvWrite& write : writes)
    call.targets.push_back({write.slab->format, write.slab->capacity, write.begin, write.count, write.at, write.writes(codec::Role::keys),
                            write.writes(codec::Role::values)});
  return call;
}

mx::array centre_of_keys(const mx::array& centre, const RowShape& keys, mx::StreamOrDevice s) {
  if (centre.shape() != mx::Shape{static_cast<int>(keys.batch), static_cast<int>(keys.heads), static_cast<int>(keys.dim)})
    throw std::invalid_argument("[kv_append] centre must be [batch, heads, dim] like the keys");
  // As it is where that is possible: a step with a node of MLX in it could not be repeated.
  const bool ready = centre.dtype() == mx::float32 && centre.is_available() && centre.flags().row_contiguous;
  return ready ? centre : mx::contiguous(mx::astype(centre, mx::float32, s), false, s);
}

// Puts the node's outputs in the place of the slabs' arrays; returns its last output.
mx::array add_node(std::span<const KvWrite> writes, const KvAppendCall& call, std::vector<mx::array> inputs,
                   const std::vector<mx::array>& more, const std::optional<mx::array>& after, mx::StreamOrDevice s) {
  std::vector<mx::Shape> shapes;
  for (const KvWrite& write : writes) {
    inputs.push_back(write.slab->data);
    shapes.push_back(write.slab->data.shape());
  }
  std::vector<mx::Dtype> dtypes(writes.size(), mx::uint8);
  inputs.insert(inputs.end(), more.begin(), more.end());
  if (call.turn) {
    const mx::array& q = more[call.centred ? 1 : 0];
    shapes.push_back(q.shape()), dtypes.push_back(q.dtype());
  }
  if (after) inputs.push_back(*after);
  auto outputs = mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<KvAppend>(mx::to_stream(s), call), inputs);
  for (size_t i = 0; i < writes.size(); ++i) writes[i].slab->data = outputs[i];
  return outputs.back();
}

}  // namespace

bool KvWrite::writes(codec::Role role) const { return slab->format->has(role) && (!only || *only == role); }

KvSlab KvSlab::make(std::shared_ptr<const KvFormat> format, int64_t capacity, int64_t first) {
  const int64_t step = format->granularity();
  capacity = (capacity + step - 1) / step * step;
  const size_t bytes = format->head_bytes(capacity);
  if (bytes > static_cast<size_t>(INT32_MAX))
    throw Error("a cache slab of " + std::to_string(capacity) + " tokens would take " + human_bytes(bytes) +
                " a head; append in smaller steps");
  mx::array data = mx::zeros({format->batch, format->heads, static_cast<int>(bytes)}, mx::uint8);
  return {std::move(format), std::move(data), capacity, first, 0};
}

void kv_append(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v, const std::optional<mx::array>& after,
               const Choice& choice, const std::optional<mx::array>& centre, mx::StreamOrDevice s) {
  if (writes.empty()) return;
  KvAppendCall call = checked_call(writes, k, v);
  if (!choice.fast) return kv_append_composed(writes, k, v, centre, s);
  std::vector<mx::array> more;
  if (centre) call.centred = true, more.push_back(centre_of_keys(*centre, call.keys, s));
  add_node(writes, call, {k, v}, more, after, s);
}

mx::array kv_append_turned(std::span<const KvWrite> writes, const KvTurning& turn, const mx::array& k, const mx::array& v,
                           const std::optional<mx::array>& after, const std::optional<mx::array>& centre, mx::StreamOrDevice s) {
  if (writes.empty()) throw std::invalid_argument("[kv_append] there is nothing to append to");
  KvAppendCall call = checked_call(writes, k, v);
  const RopeParams& rope = turn.rope;
  std::vector<mx::array> more;
  if (centre) call.centred = true, more.push_back(centre_of_keys(*centre, call.keys, s));
  call.turn = KvTurn{RowShape::of(turn.q, 0, call.keys.dim, "kv_append", "q"),
                     rope.q_norm.has_value(),
                     rope.k_norm.has_value(),
                     rope.attention_scale,
                     rope.norm_eps,
                     turn.position};
  if (call.turn->queries.tokens != call.keys.tokens || call.turn->queries.batch != call.keys.batch ||
      call.turn->queries.heads % call.keys.heads != 0)
    throw std::invalid_argument("[kv_append] q must have k's batch and tokens and a multiple of its heads");
  dtype_of(turn.q, "kv_append");
  more.push_back(turn.q), more.push_back(rope.inv_freq);
  if (rope.q_norm) more.push_back(*rope.q_norm);
  if (rope.k_norm) more.push_back(*rope.k_norm);
  return add_node(writes, call, {k, v}, more, after, s);
}

}  // namespace tersor::ops
