// What the benchmarks of the cache kernels share: memory full of random codes, launches, times under graph replay.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/kv_attend.h"
#include "kernels/cuda/kv_codec.h"
#include "linear_device.cuh"

namespace tersor::kernels::cuda {

inline constexpr size_t kPool = size_t{9} << 30;
inline uint8_t* pool;

static __global__ void fill(uint32_t* words, size_t count) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    words[i] = static_cast<uint32_t>(z >> 32);
  }
}
// Scalars near one half, so that logits are those of normal vectors.
static __global__ void set_scalars(uint8_t* tiles, size_t count, int tile_bytes, int offset, int bytes, bool affine) {
  const size_t per = bytes / 2, total = count * per;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < total; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const uint16_t random = static_cast<uint16_t>(i * 40503u >> 3) & (affine ? 511 : 1023);
    reinterpret_cast<uint16_t*>(tiles + i / per * tile_bytes + offset)[i % per] = affine ? 36 * 512 | random : 39 * 1024 | random;
  }
}
// Median microseconds of a launch, over replays of a graph of `count` launches.
inline double time_us(const std::function<void(int, cudaStream_t)>& launch, int count, int repeats = 24) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < count; ++i) launch(i, stream);
  cudaGraph_t graph;
  cudaGraphExec_t run;
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&run, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<double> times;
  for (int r = 0; r < repeats + 3; ++r) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(run, stream), "graph");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    if (r >= 3) times.push_back(ms * 1e3 / count);
  }
  check(cudaGetLastError(), "bench");
  cudaGraphExecDestroy(run), cudaGraphDestroy(graph), cudaStreamDestroy(stream), cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class Params>
void launch_now(const Launch& l, const Params& params, cudaStream_t stream) {
  void* arguments[] = {const_cast<Params*>(&params)};
  check(cudaLaunchKernel(l.function, l.grid, l.block, arguments, l.shared_bytes, stream), "launch");
}
inline void allow_shared(const Launch& l) {
  check(cudaFuncSetAttribute(l.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.shared_bytes)), "shared memory");
}

inline std::shared_ptr<const codec::Codec> codec_of(const std::string& name, codec::Role role, int dim) {
  return codec::Codec::make(codec::Spec::parse(name), role, dim, Dtype::f16);
}

/// Codecs of a cache: one name, or those of keys and values with a slash between.
struct Sides {
  std::shared_ptr<const codec::Codec> keys, values;
  Code key_code, value_code;
  int key_bytes, value_bytes, tile_bytes;
  Sides(const std::string& name, int dim) {
    const size_t slash = name.find('/');
    keys = codec_of(name.substr(0, slash), codec::Role::keys, dim);
    values = codec_of(slash == std::string::npos ? name : name.substr(slash + 1), codec::Role::values, dim);
    key_code = *code_of(*keys), value_code = *code_of(*values);
    key_bytes = side_bytes(key_code, dim), value_bytes = side_bytes(value_code, dim), tile_bytes = key_bytes + value_bytes;
  }
  bool full() const { return key_code == Code::full; }
  int tile_tokens() const { return full() ? codec::kFragmentFullTokens : codec::kFragmentTokens; }
};

/// Fills the pool with tiles of random codes and plausible scalars.
inline void fill_pool(const Sides& sides, int dim) {
  fill<<<132 * 8, 256>>>(reinterpret_cast<uint32_t*>(pool), kPool / 4);
  if (sides.full()) return;
  const size_t tiles = kPool / sides.tile_bytes;
  set_scalars<<<132 * 8, 256>>>(pool, tiles, sides.tile_bytes, code_bytes(sides.key_code, dim), scalar_bytes(sides.key_code, dim),
                                is_affine(sides.key_code));
  set_scalars<<<132 * 8, 256>>>(pool, tiles, sides.tile_bytes, sides.key_bytes, scalar_bytes(sides.value_code, dim),
                                is_affine(sides.value_code));
}

}  // namespace tersor::kernels::cuda
