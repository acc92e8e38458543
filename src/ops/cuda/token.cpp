// Embedding rows, rotary embedding by itself, and the likeliest token.
#include "kernels/cuda/token.h"

#include <cuda_runtime.h>

#include <mutex>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/norm_rope.h"
#include "ops/cuda/rows.h"

namespace tersor::ops::cuda {
namespace {

// Small pieces of the host's memory that the device writes to directly: a token's id is read every step, and memory that moves between
// the two would take longer to move than a step.
class HostPool {
 public:
  static HostPool& instance() {
    static auto& pool = *new HostPool;  // arrays may outlive statics
    return pool;
  }
  void* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      constexpr size_t kPieces = 64;
      void* memory = nullptr;
      check(cudaHostAlloc(&memory, kPieces * kBytes, cudaHostAllocPortable | cudaHostAllocMapped), "memory for token ids");
      for (size_t i = 0; i < kPieces; ++i) free_.push_back(static_cast<char*>(memory) + i * kBytes);
    }
    void* const piece = free_.back();
    free_.pop_back();
    return piece;
  }
  void give(void* piece) {
    const std::lock_guard lock(mutex_);
    free_.push_back(piece);
  }
  static constexpr size_t kBytes = 4096;

 private:
  std::mutex mutex_;
  std::vector<void*> free_;
};

void allocate_on_host(mx::array& output) {
  if (output.nbytes() > HostPool::kBytes) throw std::runtime_error("[argmax] more rows than it takes");
  auto* buffer = new mx::cu::CudaBuffer{HostPool::instance().take(), output.nbytes(), -1};
  output.set_data(mx::allocator::Data(mx::allocator::Buffer(buffer), [](mx::allocator::Buffer b) {
    auto* own = static_cast<mx::cu::CudaBuffer*>(b.ptr());
    HostPool::instance().give(own->data);
    delete own;
  }));
}

}  // namespace

void embed(mx::Stream stream, const WeightFormat& format, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  const mx::array ids = dense_rows(encoder, inputs[0]);
  allocate(outputs[0]);
  kernels::cuda::EmbedParams p;
  if (format.packed) {
    p.table = {
        format.bits,          format.group, format.packed->type, format.packed->in, kernels::cuda::linear_strips(format.packed->out, false),
        format.packed->paired};
    p.data = format.packed->data.get(), p.rows = format.packed->out;
  } else {
    p.table = {0, 0, type_of(inputs[1]), inputs[1].shape(1), 0, false};
    p.data = mx::gpu_ptr<char>(inputs[1]), p.rows = inputs[1].shape(0);
  }
  p.ids = mx::gpu_ptr<char>(ids), p.id_bytes = static_cast<int>(ids.itemsize()), p.tokens = static_cast<int>(ids.size());
  p.out = mx::gpu_ptr<char>(outputs[0]), p.out_type = type_of(outputs[0]);
  std::vector<mx::array> read{ids};
  if (!format.packed) read.push_back(inputs[1]);
  add_kernel(encoder, kernels::cuda::embed(p), &p, read, outputs);
}

void argmax(mx::Stream stream, int count, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  const mx::array logits = dense_rows(encoder, inputs[0]);
  allocate_on_host(outputs[0]);
  kernels::cuda::ArgmaxParams p;
  p.logits = mx::gpu_ptr<float>(logits), p.out = mx::gpu_ptr<int>(outputs[0]);
  p.stride = logits.shape(-1), p.rows = static_cast<int>(outputs[0].size()), p.count = count;
  const Scratch memory = scratch(encoder, stream, 0, 3 * kernels::cuda::kArgmaxMostRows);
  p.best = reinterpret_cast<unsigned long long*>(memory.tickets);
  p.tickets = memory.tickets + 2 * kernels::cuda::kArgmaxMostRows;
  add_kernel(encoder, kernels::cuda::argmax(p), &p, {logits}, outputs);
}

void rope(mx::Stream stream, const GpuRopeCall& call, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  Encoder& encoder = mx::cu::get_command_encoder(stream);
  const mx::array rows[2] = {dense_rows(encoder, inputs[0]), dense_rows(encoder, inputs[1])}, inv_freq = dense_rows(encoder, inputs[2]);
  std::vector<mx::array> read{rows[0], rows[1], inv_freq};
  kernels::cuda::RopeParams p;
  for (size_t i = 0, norm = 3; i < 2; ++i) {
    allocate(outputs[i]);
    kernels::cuda::RopeTensor& t = p.tensors[i];
    t.x = mx::gpu_ptr<char>(rows[i]), t.out = mx::gpu_ptr<char>(outputs[i]);
    t.x_stride = t.out_stride = rows[i].shape(2), t.heads = rows[i].shape(2) / call.head_dim;
    if (!(i == 0 ? call.q_norm : call.k_norm)) continue;
    read.push_back(dense_rows(encoder, inputs[norm++]));
    t.norm = mx::gpu_ptr<char>(read.back()), p.norm_type = type_of(read.back());
  }
  p.inv_freq = mx::gpu_ptr<float>(inv_freq), p.pairs = static_cast<int>(inv_freq.size());
  p.position = call.position, p.tokens_per_row = rows[0].shape(1), p.tokens = rows[0].shape(0) * rows[0].shape(1);
  p.head_dim = call.head_dim, p.attention_scale = call.scale, p.eps = call.eps, p.type = type_of(rows[0]);
  const auto launch = kernels::cuda::rope(&p);
  add_kernel(encoder, launch, &p, read, outputs);
}

}  // namespace tersor::ops::cuda
