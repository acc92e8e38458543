// A chain's kernels are launched with programmatic dependent launch (kernels/cuda/ahead.cuh): a block of the next kernel takes the room
// that a block of this one leaves and gets ready, so that neither launches nor the start of a kernel leave the memory idle. Decode steps
// are the same kernels with other parameters again and again: they run as graphs that are kept. The first kernel of a chain, and one after
// work of MLX's, waits for everything before it. Outputs come from one piece of memory a stream, from its start again in each chain: the
// stream's order keeps a later chain's writes behind an earlier chain's reads.
#include "ops/cuda/chain.h"

#include <cuda_runtime.h>
#include <mlx/allocator.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "ops/cuda/chain_graph.h"

namespace tersor::ops::cuda {
namespace {

// What chains of a stream share.
struct Shared {
  std::optional<mx::array> memory;
  size_t used = 0;
  std::list<ChainGraph> graphs;  // the last used first
};

struct Chain {
  Encoder* encoder = nullptr;
  Shared* shared = nullptr;
  std::vector<std::uintptr_t> kept;
  int depth = 0;         // chains within chains are one
  bool pending = false;  // MLX's graph holds work that is not on the stream yet
  Sequence sequence;     // not on the stream yet
};
thread_local Chain chain;

Shared& shared_of(mx::Stream stream) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, Shared>;  // outlives MLX, whose device is gone when statics are destroyed
  const std::lock_guard lock(mutex);
  return all[stream.index];
}

char* from_arena(size_t bytes) {
  constexpr size_t kLine = 256, kLeast = size_t{8} << 20;
  Shared& arena = *chain.shared;
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

ChainGraph& graph_for(const Sequence& sequence) {
  constexpr size_t kMostGraphs = 8;
  auto& graphs = chain.shared->graphs;
  const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const ChainGraph& g) { return g.fits(sequence); });
  if (found != graphs.end()) {
    graphs.splice(graphs.begin(), graphs, found);
  } else {
    for (const auto& step : sequence.steps()) prepare(step.launch, chain.encoder->device().cuda_device());
    graphs.emplace_front(sequence);
    if (graphs.size() > kMostGraphs) graphs.pop_back();
  }
  return graphs.front();
}

// Puts what has been collected on the stream.
void submit() {
  if (chain.sequence.steps().empty()) return;
  if (chain.pending) chain.encoder->commit(), chain.pending = false;
  graph_for(chain.sequence).launch(chain.sequence, chain.encoder->stream());
  chain.sequence.clear();
}

}  // namespace

bool in_chain() { return chain.depth > 0; }

void chain_begin(mx::Stream stream, std::span<const std::uintptr_t> kept) {
  chain.kept.insert(chain.kept.end(), kept.begin(), kept.end());
  if (chain.depth++ > 0) return;
  chain.encoder = &mx::cu::get_command_encoder(stream);
  chain.shared = &shared_of(stream);
  chain.shared->used = 0;
  chain.pending = true;
  chain.sequence.clear();
}

// What was collected came first.
void chain_other(mx::Stream) {
  submit();
  chain.pending = true;
}

void chain_keep(mx::Stream, const std::vector<mx::array>& nodes) {
  const auto keep = [](const mx::array& a) {
    if (a.data_shared_ptr()) chain.encoder->add_temporary(a);
  };
  for (const mx::array& node : nodes) {
    for (const mx::array& input : node.inputs()) keep(input);
    for (const mx::array& output : node.outputs()) keep(output);
  }
}

void chain_end(mx::Stream, bool complete) {
  if (--chain.depth > 0) return;
  chain.kept.clear();
  if (complete) submit();
  chain.sequence.clear();
}

void add_to_chain(const kernels::cuda::Launch& launch, const void* params, size_t params_bytes) {
  chain.sequence.add(launch, params, params_bytes);
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
