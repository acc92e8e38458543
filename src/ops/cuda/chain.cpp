// A chain's kernels are launched with programmatic dependent launch (kernels/cuda/ahead.cuh): a block of the next kernel takes the room
// that a block of this one leaves and gets ready, so that neither launches nor the start of a kernel leave the memory idle. The first
// kernel of a chain, and one after work of MLX's, waits for everything before it. Outputs come from one piece of memory a stream, from
// its start again in each chain: the stream's order keeps a later chain's writes behind an earlier chain's reads.
#include "ops/cuda/chain.h"

#include <cuda_runtime.h>
#include <mlx/allocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

namespace tersor::ops::cuda {
namespace {

// The memory that chains of a stream share.
struct Arena {
  std::optional<mx::array> memory;
  size_t used = 0;
};

struct Chain {
  Encoder* encoder = nullptr;
  Arena* arena = nullptr;
  std::vector<std::uintptr_t> kept;
  int depth = 0;       // chains within chains are one
  bool fresh = false;  // the next kernel waits for all that is on the stream
  bool pending = false;  // MLX's graph holds work that is not on the stream yet
};
thread_local Chain chain;

Arena& arena_of(mx::Stream stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, Arena>;  // outlives MLX, whose device is gone when statics are destroyed
  const std::lock_guard lock(mutex);
  return all[stream.index];
}

char* from_arena(size_t bytes) {
  constexpr size_t kLine = 256, kLeast = size_t{8} << 20;
  Arena& arena = *chain.arena;
  const size_t needed = (bytes + kLine - 1) / kLine * kLine;
  if (!arena.memory || arena.used + needed > arena.memory->nbytes()) {
    const size_t size = std::max({kLeast, needed, arena.memory ? 2 * arena.memory->nbytes() : 0});
    if (arena.memory) chain.encoder->add_temporary(*arena.memory);  // until the stream has passed the arrays in it
    arena.memory = device_memory(size, chain.encoder->device().cuda_device());
    arena.used = 0;
  }
  char* const place = mx::gpu_ptr<char>(*arena.memory) + arena.used;
  arena.used += needed;
  return place;
}

}  // namespace

bool in_chain() { return chain.depth > 0; }

void chain_begin(mx::Stream stream, std::span<const std::uintptr_t> kept) {
  chain.kept.insert(chain.kept.end(), kept.begin(), kept.end());
  if (chain.depth++ > 0) return;
  chain.encoder = &mx::cu::get_command_encoder(stream);
  chain.arena = &arena_of(stream);
  chain.arena->used = 0;
  chain.pending = true;
}

void chain_other(mx::Stream) { chain.pending = true; }

void chain_keep(mx::Stream, const std::vector<mx::array>& nodes) {
  const auto keep = [](const mx::array& a) {
    if (a.data_shared_ptr()) chain.encoder->add_temporary(a);
  };
  for (const mx::array& node : nodes) {
    for (const mx::array& input : node.inputs()) keep(input);
    for (const mx::array& output : node.outputs()) keep(output);
  }
}

void chain_end(mx::Stream) {
  if (--chain.depth > 0) return;
  chain.kept.clear();
  chain.encoder = nullptr;
}

void launch_in_chain(Encoder& encoder, const kernels::cuda::Launch& launch, void** arguments) {
  if (chain.pending) encoder.commit(), chain.fresh = true, chain.pending = false;
  cudaLaunchAttribute ahead{};
  ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  ahead.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid, config.blockDim = launch.block, config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = encoder.stream();
  config.attrs = &ahead, config.numAttrs = chain.fresh ? 0 : 1;
  check(cudaLaunchKernelExC(&config, launch.function, arguments), "a kernel's launch");
  chain.fresh = false;
}

void allocate(mx::array& output) {
  if (!in_chain() || std::find(chain.kept.begin(), chain.kept.end(), output.id()) != chain.kept.end()) {
    output.set_data(mx::allocator::malloc(output.nbytes()));
    return;
  }
  auto* buffer = new mx::cu::CudaBuffer{from_arena(output.nbytes()), output.nbytes(), chain.encoder->device().cuda_device()};
  output.set_data(mx::allocator::Data(mx::allocator::Buffer(buffer),
                                      [](mx::allocator::Buffer b) { delete static_cast<mx::cu::CudaBuffer*>(b.ptr()); }));
}

mx::array temporary(Encoder& encoder, mx::Shape shape, mx::Dtype dtype) {
  mx::array array(std::move(shape), dtype, nullptr, {});
  allocate(array);
  if (!in_chain()) encoder.add_temporary(array);
  return array;
}

}  // namespace tersor::ops::cuda
