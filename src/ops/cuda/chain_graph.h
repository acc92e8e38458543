// A chain's kernels as a CUDA graph that is made once and launched again with new parameters.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/launch.h"

namespace tersor::ops::cuda {

/// Kernels one after the other, with their parameters.
class Sequence {
 public:
  struct Step {
    kernels::cuda::Launch launch;
    size_t at, bytes;  // of the parameters
  };
  void clear() { steps_.clear(), bytes_.clear(); }
  void add(const kernels::cuda::Launch& launch, const void* params, size_t bytes);
  const std::vector<Step>& steps() const { return steps_; }
  const std::byte* params(const Step& step) const { return bytes_.data() + step.at; }
  bool same_kernels(const Sequence& other) const;

 private:
  std::vector<Step> steps_;
  std::vector<std::byte> bytes_;
};

/// Each kernel may start while the one before it ends (kernels/cuda/ahead.cuh).
class ChainGraph {
 public:
  explicit ChainGraph(const Sequence& sequence);
  ~ChainGraph();
  ChainGraph(const ChainGraph&) = delete;
  ChainGraph& operator=(const ChainGraph&) = delete;
  bool fits(const Sequence& sequence) const { return last_.same_kernels(sequence); }
  /// Only kernels whose parameters or grids have changed since the last launch cost time.
  void launch(const Sequence& sequence, cudaStream_t stream);

 private:
  Sequence last_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<cudaGraphNode_t> nodes_;
};

}  // namespace tersor::ops::cuda
