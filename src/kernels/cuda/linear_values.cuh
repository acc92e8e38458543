// Codes to 16-bit floats in registers, and loads and stores of any float type.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_layout.h"
#include "kernels/cuda/linear_ptx.cuh"

namespace tersor::kernels::cuda {

__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(float v) { return v; }
template <class T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ float from_float<float>(float v) {
  return v;
}

__device__ __forceinline__ float load_float(Dtype type, const void* p, long long i) {
  if (type == Dtype::f16) return __half2float(static_cast<const __half*>(p)[i]);
  if (type == Dtype::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
__device__ __forceinline__ void store_float(Dtype type, void* p, long long i, float v) {
  if (type == Dtype::f16)
    static_cast<__half*>(p)[i] = __float2half_rn(v);
  else if (type == Dtype::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(v);
  else
    static_cast<float*>(p)[i] = v;
}

/// The pair of T that a 32-bit register holds, and back.
template <class T>
struct PairOf;
template <>
struct PairOf<__half> {
  using type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
  using type = __nv_bfloat162;
};
template <class T>
using Pair = typename PairOf<T>::type;
template <class P>
__device__ __forceinline__ uint32_t bits_of(P pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
template <class P>
__device__ __forceinline__ P pair_of(uint32_t bits) {
  return *reinterpret_cast<P*>(&bits);
}
template <class T>
__device__ __forceinline__ Pair<T> both(float v);
template <>
__device__ __forceinline__ __half2 both<__half>(float v) {
  return __float2half2_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat162 both<__nv_bfloat16>(float v) {
  return __float2bfloat162_rn(v);
}

/// One step's fragment a0..a3 of codes plus kOffset, exactly, from the step's word (4 bits) or two words (8 bits).
/// 4 bits: rotated by 4i the word holds the codes of a_i in bits 3 to 6 of its halves, where they read as 128 + code under a half's
/// exponent of 128 and as 16 + code under a bfloat16's exponent of 16. 8 bits: code | 0x6400 reads as 1024 + code in half; bfloat16 has too
/// few bits and goes through float, where code | 0x4B000000 reads as 2^23 + code.
template <int BITS, class T>
struct Codes;

template <class T>
struct Codes<4, T> {
  static constexpr int kOffset = std::is_same_v<T, __half> ? 128 : 16;
  static constexpr uint32_t kMask = 0x00780078u, kExponent = std::is_same_v<T, __half> ? 0x58005800u : 0x41804180u;
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], uint32_t w, uint32_t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = and_or(i ? __funnelshift_r(w, w, 4 * i) : w, kMask, kExponent);
  }
};
template <>
struct Codes<8, __half> {
  static constexpr int kOffset = 1024;
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], uint32_t w0, uint32_t w1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = __byte_perm(i < 2 ? w0 : w1, 0x64646464u, i & 1 ? 0x4342 : 0x4140);
  }
};
template <>
struct Codes<8, __nv_bfloat16> {
  static constexpr int kOffset = 0;
  static __device__ __forceinline__ float whole(uint32_t w, int byte) {
    return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7550 + byte)) - 8388608.f;
  }
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], uint32_t w0, uint32_t w1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t w = i < 2 ? w0 : w1;
      const int byte = 2 * (i & 1);
      a[i] = __byte_perm(__float_as_uint(whole(w, byte)), __float_as_uint(whole(w, byte + 1)), 0x7632);
    }
  }
};

/// The same less the offset: whole codes.
template <int BITS, class T>
__device__ __forceinline__ void whole_codes(uint32_t (&a)[4], uint32_t w0, uint32_t w1) {
  Codes<BITS, T>::fragment(a, w0, w1);
  if constexpr (Codes<BITS, T>::kOffset != 0) {
    const Pair<T> offset = both<T>(Codes<BITS, T>::kOffset);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = bits_of(__hsub2(pair_of<Pair<T>>(a[i]), offset));
  }
}

/// N scales and biases of one row, as they lie in shared memory, read with the widest loads.
template <class S, int N>
struct ScaleRow {
  static constexpr int kBytes = N * 2 * static_cast<int>(sizeof(S));
  alignas(kBytes < 16 ? kBytes : 16) S v[N][2];
  __device__ __forceinline__ void load(const uint8_t* from) {
    if constexpr (kBytes == 4)
      *reinterpret_cast<uint32_t*>(v) = *reinterpret_cast<const uint32_t*>(from);
    else if constexpr (kBytes == 8)
      *reinterpret_cast<uint2*>(v) = *reinterpret_cast<const uint2*>(from);
    else
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) reinterpret_cast<uint4*>(v)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ __forceinline__ float scale(int i) const { return to_float(v[i][0]); }
  __device__ __forceinline__ float bias(int i) const { return to_float(v[i][1]); }
};

}  // namespace tersor::kernels::cuda
