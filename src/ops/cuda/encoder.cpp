#include "ops/cuda/encoder.h"

#include <cuda_runtime.h>
#include <mlx/allocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "ops/cuda/chain.h"

namespace tersor::ops::cuda {
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("[cuda] ") + what + ": " + cudaGetErrorString(error));
}

namespace {

// MLX's library has a CUDA runtime of its own, which knows none of our functions: it takes the driver's handle instead.
CUfunction handle_of(const kernels::cuda::Launch& launch, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, CUfunction> handles;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(launch.function, device);
  if (const auto found = handles.find(key); found != handles.end()) return found->second;
  cudaFunction_t function;
  check(cudaGetFuncBySymbol(&function, launch.function), "the device has no code for a kernel");
  // As much shared memory as there is: other launches of the kernel may want more than this one.
  int most = 0;
  cudaFuncAttributes attributes{};
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  check(cudaFuncGetAttributes(&attributes, launch.function), "a kernel's shared memory");
  check(cudaFuncSetAttribute(launch.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             most - static_cast<int>(attributes.sharedSizeBytes)),
        "a kernel's shared memory");
  return handles.emplace(key, static_cast<CUfunction>(function)).first->second;
}

}  // namespace

mx::array device_memory(size_t bytes, int device) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "scratch memory");
  check(cudaMemset(data, 0, bytes), "scratch memory");
  check(cudaDeviceSynchronize(), "scratch memory");
  auto* buffer = new mx::cu::CudaBuffer{data, bytes, device};
  mx::array array(mx::Shape{static_cast<int>(bytes / 4)}, mx::uint32, nullptr, {});
  array.set_data(mx::allocator::Data(mx::allocator::Buffer(buffer), [](mx::allocator::Buffer b) {
    auto* own = static_cast<mx::cu::CudaBuffer*>(b.ptr());
    cudaFree(own->data);
    delete own;
  }));
  return array;
}

void prepare(const kernels::cuda::Launch& launch, int device) { handle_of(launch, device); }

void add_kernel(Encoder& encoder, const kernels::cuda::Launch& launch, const void* params, size_t params_bytes,
                const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs) {
  if (launch.function == nullptr) throw std::runtime_error("[cuda] a call has no kernel that the choice of kernels had promised");
  if (in_chain()) return add_to_chain(launch, params, params_bytes);
  void* arguments[] = {const_cast<void*>(params)};
  for (const mx::array& input : inputs) encoder.set_input_array(input);
  for (const mx::array& output : outputs) encoder.set_output_array(output);
  encoder.add_kernel_node_raw(handle_of(launch, encoder.device().cuda_device()), launch.grid, launch.block, dim3(), launch.shared_bytes,
                              arguments);
}

int processors(const Encoder& encoder) {
  static std::mutex mutex;
  static std::map<int, int> counts;
  const int device = const_cast<Encoder&>(encoder).device().cuda_device();
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = counts.emplace(device, 0);
  if (fresh) check(cudaDeviceGetAttribute(&at->second, cudaDevAttrMultiProcessorCount, device), "the number of processors");
  return at->second;
}

Scratch scratch(Encoder& encoder, mx::Stream stream, size_t partial_floats, size_t ticket_count) {
  struct Own {
    mx::array memory;
    size_t tickets;  // at its start; partial results follow
  };
  static std::mutex mutex;
  static auto& all = *new std::map<int, Own>;  // outlives MLX, whose device is gone when statics are destroyed
  const std::lock_guard lock(mutex);
  constexpr size_t kLeastTickets = 4096, kLeastBytes = 1 << 20;
  const auto bytes_for = [&](size_t tickets) { return tickets * sizeof(unsigned) + partial_floats * sizeof(float); };
  auto found = all.find(stream.index);
  if (found == all.end() || found->second.tickets < ticket_count || found->second.memory.nbytes() < bytes_for(found->second.tickets)) {
    const size_t tickets = std::max(kLeastTickets, (ticket_count + 63) / 64 * 64);
    size_t bytes = kLeastBytes;
    while (bytes < bytes_for(tickets)) bytes *= 2;
    if (found != all.end()) encoder.add_temporary(found->second.memory);  // lives until the graph that uses it has run
    found = all.insert_or_assign(stream.index, Own{device_memory(bytes, encoder.device().cuda_device()), tickets}).first;
  }
  Own& own = found->second;
  if (!in_chain()) {
    encoder.set_input_array(own.memory);
    encoder.set_output_array(own.memory);
  }
  auto* const start = mx::gpu_ptr<unsigned>(own.memory);
  return {reinterpret_cast<float*>(start + own.tickets), start};
}

void take_or_allocate(mx::array& output, const mx::array& input) {
  const bool alike = input.dtype() == output.dtype() && input.shape() == output.shape() && input.flags().row_contiguous;
  if (alike && input.is_donatable())
    output.copy_shared_buffer(input);
  else
    allocate(output);
}

}  // namespace tersor::ops::cuda
