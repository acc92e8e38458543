// What the tests and benchmarks of the linear kernels share: device buffers, launches, random weights in MLX's layout.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/cuda/linear.h"

namespace tersor::kernels::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(3);
}

class Buffer {
 public:
  explicit Buffer(size_t bytes, int fill = 0) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes ? bytes : 16), "cudaMalloc");
    check(cudaMemset(data_, fill, bytes), "cudaMemset");
  }
  template <class V>
  explicit Buffer(const std::vector<V>& values) : Buffer(values.size() * sizeof(V)) {
    check(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&&) = delete;
  void* get() const { return data_; }
  uint8_t* bytes() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return bytes_; }
  template <class V>
  std::vector<V> read() const {
    std::vector<V> values(bytes_ / sizeof(V));
    check(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

template <class Params>
void launch(const Launch& l, const Params& params, cudaStream_t stream = nullptr) {
  if (l.shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(l.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.shared_bytes)), "shared memory");
  void* arguments[] = {const_cast<Params*>(&params)};
  check(cudaLaunchKernel(l.function, l.grid, l.block, arguments, l.shared_bytes, stream), "cudaLaunchKernel");
}

inline uint16_t half_bits(float v) { return __half_raw(__float2half_rn(v)).x; }
inline uint16_t bfloat_bits(float v) { return __nv_bfloat16_raw(__float2bfloat16_rn(v)).x; }

/// Numbers of any float type on the host, with their exact values beside the bytes.
struct Numbers {
  Dtype type;
  std::vector<uint8_t> bytes;
  std::vector<float> values;

  Numbers(Dtype t, size_t n) : type(t), bytes(n * size_of(t)), values(n) {}
  void set(size_t i, float v) {
    if (type == Dtype::f32) {
      reinterpret_cast<float*>(bytes.data())[i] = values[i] = v;
      return;
    }
    const uint16_t bits = type == Dtype::f16 ? half_bits(v) : bfloat_bits(v);
    reinterpret_cast<uint16_t*>(bytes.data())[i] = bits;
    values[i] = read(type, bytes.data(), i);
  }
  static float read(Dtype type, const void* from, size_t i) {
    if (type == Dtype::f32) return static_cast<const float*>(from)[i];
    if (type == Dtype::f16) {
      __half_raw raw;
      raw.x = static_cast<const uint16_t*>(from)[i];
      return __half2float(__half(raw));
    }
    __nv_bfloat16_raw raw;
    raw.x = static_cast<const uint16_t*>(from)[i];
    return __bfloat162float(__nv_bfloat16(raw));
  }
};

/// A quantised weight in MLX's layout on the host.
struct HostWeight {
  int rows, k, bits, group;
  std::vector<uint32_t> codes;
  Numbers scales, biases;

  HostWeight(int rows_, int k_, int bits_, int group_, Dtype scale_type, std::mt19937& rng)
      : rows(rows_),
        k(k_),
        bits(bits_),
        group(group_),
        codes(static_cast<size_t>(rows_) * k_ * bits_ / 32),
        scales(scale_type, static_cast<size_t>(rows_) * k_ / group_),
        biases(scale_type, static_cast<size_t>(rows_) * k_ / group_) {
    std::uniform_real_distribution<float> u(0.5f, 1.5f);
    for (uint32_t& w : codes) w = rng();
    const float step = 0.3f / static_cast<float>(1 << bits);
    for (size_t i = 0; i < scales.values.size(); ++i) {
      scales.set(i, step * u(rng) * (rng() % 8 == 0 ? -1.f : 1.f));
      biases.set(i, -step * static_cast<float>(1 << (bits - 1)) * u(rng));
    }
  }
  double value(int row, int column) const {
    const size_t bit = (static_cast<size_t>(row) * k + column) * bits, g = static_cast<size_t>(row) * (k / group) + column / group;
    const uint32_t code = (codes[bit / 32] >> (bit % 32)) & ((1u << bits) - 1);
    return static_cast<double>(scales.values[g]) * code + biases.values[g];
  }
};

/// The same on the device.
struct DeviceWeight {
  Buffer codes, scales, biases;
  explicit DeviceWeight(const HostWeight& w) : codes(w.codes), scales(w.scales.bytes), biases(w.biases.bytes) {}
  AffineRows rows() const { return {static_cast<const uint32_t*>(codes.get()), scales.get(), biases.get()}; }
};

}  // namespace tersor::kernels::cuda
