// RMS norm and rotary position embedding.
#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/linear_values.cuh"
#include "kernels/cuda/norm_rope.h"
#include "kernels/cuda/turn.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr int kNormThreads = 512, kNormPieces = kRmsNormMost / 8 / kNormThreads;

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) v += __shfl_xor_sync(~0u, v, lanes);
  return v;
}

template <class T>
struct Eight {
  alignas(16) T v[8];
  __device__ __forceinline__ void load(const T* from) { *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(from); }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(v); }
};

/// A block a row; a thread keeps up to PIECES times 8 numbers in registers.
template <class T, int PIECES>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float parts[kNormThreads / 32];
  let_next_start();
  wait_for_earlier();
  const size_t row = static_cast<size_t>(blockIdx.x) * p.n;
  const T* x = static_cast<const T*>(p.x) + row;
  const T* residual = p.residual ? static_cast<const T*>(p.residual) + row : nullptr;
  Eight<T> v[PIECES];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= p.n) continue;
    v[i].load(x + at);
    if (residual) {
      Eight<T> other;
      other.load(residual + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i].v[j] = from_float<T>(to_float(v[i].v[j]) + to_float(other.v[j]));
      if (p.sum) v[i].store(static_cast<T*>(p.sum) + row + at);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(to_float(v[i].v[j]), to_float(v[i].v[j]), squares);
  }
  squares = warp_sum(squares);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = squares;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  const float total = warp_sum(lane < static_cast<int>(blockDim.x >> 5) ? parts[lane] : 0.f);
  const float scale = rsqrtf(total / static_cast<float>(p.n) + p.eps);
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= p.n) continue;
    Eight<T> out;
#pragma unroll
    for (int j = 0; j < 8; ++j) out.v[j] = from_float<T>(to_float(v[i].v[j]) * scale * load_float(p.weight_type, p.weight, at + j));
    out.store(static_cast<T*>(p.out) + row + at);
  }
}

template <class T>
const void* rms_norm_function(int pieces) {
  if (pieces <= 1) return reinterpret_cast<const void*>(&rms_norm_kernel<T, 1>);
  if (pieces <= 2) return reinterpret_cast<const void*>(&rms_norm_kernel<T, 2>);
  if (pieces <= 4) return reinterpret_cast<const void*>(&rms_norm_kernel<T, 4>);
  return reinterpret_cast<const void*>(&rms_norm_kernel<T, kNormPieces>);
}

/// A block a token, a warp a head at a time; the token's cosines and sines lie in shared memory.
template <class T>
__global__ void __launch_bounds__(256) rope_kernel(const __grid_constant__ RopeParams p) {
  extern __shared__ float2 turns[];
  let_next_start();
  wait_for_earlier();
  const int token = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t position = p.positions ? p.positions[token] : p.position + (p.tokens_per_row ? token % p.tokens_per_row : token);
  for (int i = threadIdx.x; i < p.pairs; i += blockDim.x) turns[i] = turn_of(position, p.inv_freq[i], p.attention_scale);
  __syncthreads();
  const int first = p.tensors[0].heads, heads = first + p.tensors[1].heads;
  for (int h = blockIdx.y * (blockDim.x >> 5) + warp; h < heads; h += gridDim.y * (blockDim.x >> 5)) {
    const RopeTensor& tensor = p.tensors[h >= first];
    const int head = h >= first ? h - first : h;
    const T* x = static_cast<const T*>(tensor.x) + token * tensor.x_stride + static_cast<long long>(head) * p.head_dim;
    T* out = static_cast<T*>(tensor.out) + token * tensor.out_stride + static_cast<long long>(head) * p.head_dim;
    float scale = 1;
    if (tensor.norm) {
      float squares = 0;
      for (int i = lane; i < p.head_dim; i += 32) squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
      scale = rsqrtf(warp_sum(squares) / static_cast<float>(p.head_dim) + p.eps);
    }
    const auto value = [&](int i) {
      const float v = to_float(x[i]);
      return tensor.norm ? v * scale * load_float(p.norm_type, tensor.norm, i) : v;
    };
    if (p.doubles && !tensor.norm) {  // two dimensions a lane
      for (int i = 2 * lane; i < p.pairs; i += 64) {
        const Pair<T> a = *reinterpret_cast<const Pair<T>*>(x + i), b = *reinterpret_cast<const Pair<T>*>(x + i + p.pairs);
        const float2 first = turns[i], second = turns[i + 1];
        Pair<T> c, d;
        c.x = from_float<T>(to_float(a.x) * first.x - to_float(b.x) * first.y),
        d.x = from_float<T>(to_float(b.x) * first.x + to_float(a.x) * first.y);
        c.y = from_float<T>(to_float(a.y) * second.x - to_float(b.y) * second.y);
        d.y = from_float<T>(to_float(b.y) * second.x + to_float(a.y) * second.y);
        *reinterpret_cast<Pair<T>*>(out + i) = c, *reinterpret_cast<Pair<T>*>(out + i + p.pairs) = d;
      }
    } else {
      for (int i = lane; i < p.pairs; i += 32) {
        const float a = value(i), b = value(i + p.pairs);
        const float2 turn = turns[i];
        out[i] = from_float<T>(a * turn.x - b * turn.y), out[i + p.pairs] = from_float<T>(b * turn.x + a * turn.y);
      }
    }
    for (int i = 2 * p.pairs + lane; i < p.head_dim; i += 32) out[i] = from_float<T>(value(i));
  }
}

}  // namespace

Launch rms_norm(const RmsNormParams& p) {
  if (p.type == Dtype::f32 || p.n % 8 != 0 || p.n > kRmsNormMost || p.rows < 1) return {};
  const int threads = ceil_div(p.n / 8, 32) * 32 < kNormThreads ? ceil_div(p.n / 8, 32) * 32 : kNormThreads;
  const int pieces = ceil_div(p.n / 8, threads);
  const void* function = p.type == Dtype::f16 ? rms_norm_function<__half>(pieces) : rms_norm_function<__nv_bfloat16>(pieces);
  return {function, {static_cast<unsigned>(p.rows), 1, 1}, {static_cast<unsigned>(threads), 1, 1}, 0};
}

Launch rope(RopeParams* params) {
  RopeParams& p = *params;
  const int heads = p.tensors[0].heads + p.tensors[1].heads;
  if (p.type == Dtype::f32 || p.head_dim % 2 != 0 || p.head_dim > 512 || 2 * p.pairs > p.head_dim || p.tokens < 1 || heads < 1) return {};
  const void* function = p.type == Dtype::f16 ? reinterpret_cast<const void*>(&rope_kernel<__half>)
                                              : reinterpret_cast<const void*>(&rope_kernel<__nv_bfloat16>);
  uintptr_t places = static_cast<uintptr_t>(p.pairs) * 2;
  for (const RopeTensor& t : p.tensors)
    places |= reinterpret_cast<uintptr_t>(t.x) | reinterpret_cast<uintptr_t>(t.out) | static_cast<uintptr_t>(t.x_stride | t.out_stride) * 2;
  p.doubles = places % 4 == 0;
  const unsigned blocks =
      p.tokens < 64 ? static_cast<unsigned>(ceil_div(heads, 8)) : 1;  // a block's warps take several heads of many tokens
  return {function, {static_cast<unsigned>(p.tokens), blocks, 1}, {256, 1, 1}, static_cast<unsigned>(p.pairs) * 8u};
}

}  // namespace tersor::kernels::cuda
