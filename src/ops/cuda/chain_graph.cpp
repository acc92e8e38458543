#include "ops/cuda/chain_graph.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/cuda/encoder.h"

namespace tersor::ops::cuda {
namespace {

cudaKernelNodeParams node_params(const kernels::cuda::Launch& launch, void** arguments) {
  cudaKernelNodeParams p{};
  p.func = const_cast<void*>(launch.function);
  p.gridDim = launch.grid, p.blockDim = launch.block, p.sharedMemBytes = launch.shared_bytes;
  p.kernelParams = arguments;
  return p;
}

bool equal(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

bool equal(const kernels::cuda::Launch& a, const kernels::cuda::Launch& b) {
  return equal(a.grid, b.grid) && equal(a.block, b.block) && a.shared_bytes == b.shared_bytes;
}

}  // namespace

void Sequence::add(const kernels::cuda::Launch& launch, const void* params, size_t bytes) {
  constexpr size_t kAlignment = 16;
  const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes_.resize(at + bytes);
  std::memcpy(bytes_.data() + at, params, bytes);
  steps_.push_back({launch, at, bytes});
}

bool Sequence::same_kernels(const Sequence& other) const {
  return std::equal(steps_.begin(), steps_.end(), other.steps_.begin(), other.steps_.end(),
                    [](const Step& a, const Step& b) { return a.launch.function == b.launch.function && a.bytes == b.bytes; });
}

ChainGraph::ChainGraph(const Sequence& sequence) : last_(sequence) {
  check(cudaGraphCreate(&graph_, 0), "a graph");
  cudaGraphEdgeData ahead{};
  ahead.from_port = cudaGraphKernelNodePortProgrammatic, ahead.type = cudaGraphDependencyTypeProgrammatic;
  for (const Sequence::Step& step : sequence.steps()) {
    void* arguments[] = {const_cast<std::byte*>(sequence.params(step))};
    const cudaKernelNodeParams params = node_params(step.launch, arguments);
    cudaGraphNode_t node = nullptr;
    check(cudaGraphAddKernelNode(&node, graph_, nullptr, 0, &params), "a graph's kernel");
    if (!nodes_.empty()) check(cudaGraphAddDependencies(graph_, &nodes_.back(), &node, &ahead, 1), "a graph's order");
    nodes_.push_back(node);
  }
  check(cudaGraphInstantiate(&executable_, graph_, 0), "a graph");
}

ChainGraph::~ChainGraph() {
  if (executable_) cudaGraphExecDestroy(executable_);
  if (graph_) cudaGraphDestroy(graph_);
}

void ChainGraph::launch(const Sequence& sequence, cudaStream_t stream) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Sequence::Step &now = sequence.steps()[i], &before = last_.steps()[i];
    if (equal(now.launch, before.launch) && std::memcmp(sequence.params(now), last_.params(before), now.bytes) == 0) continue;
    void* arguments[] = {const_cast<std::byte*>(sequence.params(now))};
    const cudaKernelNodeParams params = node_params(now.launch, arguments);
    check(cudaGraphExecKernelNodeSetParams(executable_, nodes_[i], &params), "a graph's new parameters");
  }
  last_ = sequence;
  check(cudaGraphLaunch(executable_, stream), "a graph's launch");
}

}  // namespace tersor::ops::cuda
