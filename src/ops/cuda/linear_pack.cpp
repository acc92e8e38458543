// Weights into the kernels' layout, once, when a model is loaded.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/linear.h"
#include "ops/cuda/rows.h"

namespace tersor::ops::cuda {
namespace {

kernels::cuda::AffineRows rows_of_weight(const LinearWeight& w) {
  return {mx::gpu_ptr<uint32_t>(w.weight), mx::gpu_ptr<char>(*w.scales), mx::gpu_ptr<char>(*w.biases)};
}

std::shared_ptr<uint8_t> device_bytes(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation)
    throw Error("the GPU has no " + human_bytes(bytes) + " left for a weight: use a smaller or more strongly quantised model");
  check(error, "memory for a weight");
  return {static_cast<uint8_t*>(data), [](uint8_t* p) { cudaFree(p); }};
}

}  // namespace

GpuPacked linear_pack(const GpuPackCall& call) {
  const LinearWeight& first = *call.weights[0];
  kernels::cuda::PackedLinear shape{first.bits, first.group, call.scale_type, first.in_features(), 0, call.paired};
  GpuPacked packed;
  std::vector<int> starts;
  for (const LinearWeight* w : call.weights) {
    packed.offsets.push_back(shape.strips ? kernels::cuda::linear_packed_bytes(shape) : 0);
    starts.push_back(shape.strips);
    if (!call.paired || starts.size() == 1) shape.strips += kernels::cuda::linear_strips(w->out_features(), call.paired);
  }
  if (call.paired) packed.offsets[1] = 0;
  packed.bytes = kernels::cuda::linear_packed_bytes(shape);
  const auto data = device_bytes(packed.bytes);
  for (size_t i = 0; i < (call.paired ? 1 : call.weights.size()); ++i) {
    const LinearWeight& w = *call.weights[i];
    kernels::cuda::RepackParams params;
    const auto up = call.paired ? rows_of_weight(*call.weights[1]) : kernels::cuda::AffineRows{};
    const auto launch =
        kernels::cuda::linear_repack(shape, rows_of_weight(w), up, w.out_features(), type_of(*w.scales), starts[i], data.get(), &params);
    if (!launch.function) throw std::runtime_error("[linear_pack] there is no layout for these weights");
    void* arguments[] = {&params};
    check(cudaLaunchKernel(launch.function, launch.grid, launch.block, arguments, launch.shared_bytes, nullptr), "packing a weight");
  }
  check(cudaDeviceSynchronize(), "packing a weight");
  packed.data = data;
  return packed;
}

}  // namespace tersor::ops::cuda
