#include "kernels/cuda/kv_append.h"

#include "ops/cuda/kv_params.h"

namespace tersor::ops::cuda {
namespace {

using kernels::cuda::AppendJob, kernels::cuda::AppendParams;

AppendJob job_of(const KvTarget& target, bool keys, mx::array& slab) {
  const KvFormat& format = *target.format;
  AppendJob job;
  job.tiles = mx::gpu_ptr<uint8_t>(slab);
  job.head_stride = format.head_bytes(target.capacity), job.batch_stride = job.head_stride * format.heads;
  job.tile_bytes = static_cast<unsigned>(format.keys.stride), job.side_offset = keys ? 0 : static_cast<unsigned>(format.keys.block_bytes);
  job.begin = static_cast<int>(target.begin), job.at = static_cast<int>(target.at), job.count = static_cast<int>(target.count);
  job.code = prepared(format).codes[keys ? 0 : 1];
  job.keys = keys;
  return job;
}

// Levels are those of the compressed slabs, the storage type that of the full ones.
void describe(AppendParams& p, const KvTarget& target) {
  const KvFormat& format = *target.format;
  for (const int side : {0, 1}) {
    const codec::Layout& layout = side == 0 ? format.keys : format.values;
    if (layout.family == codec::Family::full)
      p.full_type[side] = number_of(layout.dtype);
    else
      p.levels[side] = prepared(format).levels[side];
  }
  for (const int side : {0, 1}) p.rotations[side] = prepared(format).rotations[side];
  p.sanitise = format.sanitise, p.heads = format.heads;
}

kernels::cuda::AppendTurn turn_of(const KvAppendCall& call, const std::vector<mx::array>& inputs, mx::array& out) {
  const KvTurn& from = *call.turn;
  const RowShape& shape = from.queries;
  size_t next = 2 + call.targets.size() + (call.centred ? 1 : 0);
  kernels::cuda::AppendTurn turn;
  turn.queries = rows_on_device(inputs[next++], shape);
  const mx::array& inv_freq = inputs[next++];
  turn.inv_freq = mx::gpu_ptr<float>(inv_freq), turn.pairs = static_cast<int>(inv_freq.size());
  for (const int side : {0, 1}) {
    if (!(side == 0 ? from.q_norm : from.k_norm)) continue;
    turn.norm_type = number_of(inputs[next].dtype());
    turn.norms[side] = mx::gpu_ptr<char>(inputs[next++]);
  }
  turn.group = static_cast<int>(shape.heads / call.keys.heads);
  turn.position = from.position, turn.scale = from.scale, turn.eps = from.eps;
  turn.out = mx::gpu_ptr<char>(out);
  turn.out_batch_stride = shape.heads * shape.tokens * shape.dim;
  turn.out_head_stride = shape.tokens_major ? shape.dim : shape.tokens * shape.dim;
  turn.out_token_stride = shape.tokens_major ? shape.heads * shape.dim : shape.dim;
  return turn;
}

}  // namespace

void kv_append(mx::Stream stream, const KvAppendCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  for (size_t i = 0; i < call.targets.size(); ++i) outputs[i].copy_shared_buffer(inputs[2 + i]);
  AppendParams p;
  p.rows[0] = rows_on_device(inputs[0], call.keys), p.rows[1] = rows_on_device(inputs[1], call.values);
  for (const KvTarget& target : call.targets) describe(p, target);
  p.tokens = static_cast<int>(call.keys.tokens);
  if (call.centred) p.centre = mx::gpu_ptr<float>(inputs[2 + call.targets.size()]);
  if (call.turn) {
    allocate(outputs.back());
    p.turn = turn_of(call, inputs, outputs.back());
  }
  const int batch = static_cast<int>(call.keys.batch), dim = static_cast<int>(call.keys.dim);
  const auto launch = [&] {
    const auto plan = kernels::cuda::append_plan(p, dim, batch);
    if (plan.grid.x > 0) add_kernel(encoder, plan, &p, inputs, outputs);
    p.jobs = 0, p.turn.out = nullptr;
  };
  for (size_t i = 0; i < call.targets.size(); ++i) {
    if (p.jobs + 2 > kernels::cuda::kMaxAppendJobs) launch();
    for (const bool keys : {true, false}) p.job[p.jobs++] = job_of(call.targets[i], keys, outputs[i]);
  }
  launch();
}

}  // namespace tersor::ops::cuda
