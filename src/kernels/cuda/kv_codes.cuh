// Codes to operands of the integer matrix product.
#pragma once

#include <type_traits>

#include "kernels/cuda/kv_format.h"
#include "kernels/cuda/kv_primitives.cuh"

namespace tersor::kernels::cuda {

/// A lane's words of one unit (codec/fragment.h), from shared memory.
template <int kWords>
__device__ __forceinline__ void load_unit(const uint8_t* unit, int lane, uint32_t (&w)[kWords]) {
  if constexpr (kWords == 5 || kWords == 6) {
    const uint4 x = *reinterpret_cast<const uint4*>(unit + lane * 16);
    w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    if constexpr (kWords == 5) {
      w[4] = *reinterpret_cast<const uint32_t*>(unit + 512 + lane * 4);
    } else {
      const uint2 y = *reinterpret_cast<const uint2*>(unit + 512 + lane * 8);
      w[4] = y.x, w[5] = y.y;
    }
  } else if constexpr (kWords >= 4) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 x = *reinterpret_cast<const uint4*>(unit + i * 128 + lane * 16);
      w[i] = x.x, w[i + 1] = x.y, w[i + 2] = x.z, w[i + 3] = x.w;
    }
  } else if constexpr (kWords == 1) {
    w[0] = *reinterpret_cast<const uint32_t*>(unit + lane * 4);
  } else {
    const uint2 x = *reinterpret_cast<const uint2*>(unit + lane * 8);
    w[0] = x.x, w[1] = x.y;
    if constexpr (kWords == 3) w[2] = *reinterpret_cast<const uint32_t*>(unit + 256 + lane * 4);
  }
}

/// Turns a unit into its eight registers. Turboquant's become u with the level (2 u + 1) * step; affine codes stay as they are.
/// Codes of 5 and 6 bits: WideDecoder.
template <Code C>
struct Decoder {
  static constexpr bool kUnsigned = is_affine(C);
  static constexpr int kWords = form_of(C).words();
  static constexpr int kUnitBytes = kWords * 128;
  uint32_t low = 0, high = 0;  // a table of eight bytes

  __device__ explicit Decoder(const Levels& levels) {
    constexpr int kFirst = C == Code::turbo4 ? 8 : 0;
    const auto four = [&](int i) {
      return static_cast<uint32_t>(static_cast<uint8_t>(levels.u[i])) | static_cast<uint32_t>(static_cast<uint8_t>(levels.u[i + 1])) << 8 |
             static_cast<uint32_t>(static_cast<uint8_t>(levels.u[i + 2])) << 16 |
             static_cast<uint32_t>(static_cast<uint8_t>(levels.u[i + 3])) << 24;
    };
    if constexpr (!kUnsigned) low = four(kFirst), high = four(kFirst + 4);
    asm volatile("" : "+r"(low), "+r"(high));
  }

  __device__ __forceinline__ void decode(const uint8_t* unit, int lane, uint32_t (&a)[8]) const {
    uint32_t w[kWords];
    load_unit<kWords>(unit, lane, w);
    decode(w, a);
  }
  __device__ __forceinline__ void decode(const uint32_t (&w)[kWords], uint32_t (&a)[8]) const {
    if constexpr (C == Code::turbo4) decode_mirror(w, a);
    if constexpr (C == Code::turbo3) decode_three(w, a);
    if constexpr (C == Code::turbo2) decode_fields<0x33333333u, 2>(w, a);
    if constexpr (C == Code::turbo1) decode_fields<0x11111111u, 4>(w, a);
    if constexpr (kUnsigned) decode_plain(w, a);
  }

 private:
  __device__ __forceinline__ void look_up(uint32_t selectors, uint32_t& first, uint32_t& second) const {
    first = permute(low, high, selectors);
    second = permute(low, high, selectors >> 16);
  }
  // Minus is bitwise not, because levels lie at half-integers: the sign's mask comes from the permute that replicates sign bits.
  __device__ __forceinline__ void decode_mirror(const uint32_t (&w)[kWords], uint32_t (&a)[8]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t magnitudes = w[i] & 0x77777777u, shifted = w[i] << 4;
      a[2 * i] = permute(low, high, magnitudes) ^ permute(w[i], w[i], 0xba98u);
      a[2 * i + 1] = permute(low, high, magnitudes >> 16) ^ permute(shifted, shifted, 0xba98u);
    }
  }
  __device__ __forceinline__ void decode_three(const uint32_t (&w)[kWords], uint32_t (&a)[8]) const {
#pragma unroll
    for (int i = 0; i < 3; ++i) look_up(w[i] & 0x77777777u, a[2 * i], a[2 * i + 1]);
    look_up((w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u), a[6], a[7]);
  }
  template <uint32_t kMask, int kFields>
  __device__ __forceinline__ void decode_fields(const uint32_t (&w)[kWords], uint32_t (&a)[8]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
#pragma unroll
      for (int f = 0; f < kFields; ++f) {
        const int at = 2 * (i * kFields + f);
        look_up(w[i] >> (f * 4 / kFields) & kMask, a[at], a[at + 1]);
      }
  }
  __device__ __forceinline__ void decode_plain(const uint32_t (&w)[kWords], uint32_t (&a)[8]) const {
    constexpr int kBits = codec::packing_bits(packing_of(C)), kFields = 8 / kBits;
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = kFields == 1 ? w[i] : w[i / kFields] >> (kBits * (i % kFields)) & kMask;
  }
};

/// The same for levels u = low + 4 high + 2: registers of either part.
template <Code C>
struct WideDecoder {
  static constexpr bool kSix = C == Code::turbo6;
  static constexpr int kWords = form_of(C).words(), kUnitBytes = kWords * 128;
  uint32_t low[kSix ? 8 : 4], high[kSix ? 1 : 4];

  __device__ explicit WideDecoder(const Levels& levels) {
    const auto four = [](const int8_t* from) {
      uint32_t w = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) w |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << 8 * i;
      return w;
    };
#pragma unroll
    for (int i = 0; i < (kSix ? 8 : 4); ++i) {
      low[i] = four(levels.u + 4 * i);
      asm volatile("" : "+r"(low[i]));
    }
#pragma unroll
    for (int i = 0; i < (kSix ? 1 : 4); ++i) {
      high[i] = four(levels.high + 4 * i);
      asm volatile("" : "+r"(high[i]));
    }
  }

  __device__ __forceinline__ void decode(const uint8_t* unit, int lane, uint32_t (&a)[8], uint32_t (&b)[8]) const {
    uint32_t w[kWords];
    load_unit<kWords>(unit, lane, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) decode_word(w, i, a[2 * i], b[2 * i], a[2 * i + 1], b[2 * i + 1]);
  }
  /// Registers 2 i and 2 i + 1.
  __device__ __forceinline__ void decode_word(const uint32_t (&w)[kWords], int i, uint32_t& a0, uint32_t& b0, uint32_t& a1,
                                              uint32_t& b1) const {
    const uint32_t at = w[i] & 0x77777777u, minus0 = permute(w[i], w[i], 0xba98u), left = w[i] << 4, minus1 = permute(left, left, 0xba98u);
    // Tables of eight bytes are chosen between by a permutation too: nibbles 3, 2, 1, 0 take bytes of the first, with 4 added of the
    // second.
    if constexpr (kSix) {
      const uint32_t above = w[4 + (i >> 1)] >> (2 * (i & 1)), table = above & 0x33333333u, odd = (above << 2 & 0x44444444u) | 0x32103210u,
                     upper = (above << 1 & 0x44444444u) | 0x32103210u;
      a0 = one_of_four(at, odd, upper) ^ minus0, b0 = permute(high[0], high[0], table) ^ minus0;
      a1 = one_of_four(at >> 16, odd >> 16, upper >> 16) ^ minus1, b1 = permute(high[0], high[0], table >> 16) ^ minus1;
    } else {
      const uint32_t upper = ((i < 2 ? w[4] << (2 - i) : w[4] >> (i - 2)) & 0x44444444u) | 0x32103210u;
      a0 = one_of_two(low, at, upper) ^ minus0, b0 = one_of_two(high, at, upper) ^ minus0;
      a1 = one_of_two(low, at >> 16, upper >> 16) ^ minus1, b1 = one_of_two(high, at >> 16, upper >> 16) ^ minus1;
    }
  }

 private:
  template <int N>
  __device__ __forceinline__ static uint32_t one_of_two(const uint32_t (&table)[N], uint32_t at, uint32_t upper) {
    return permute(permute(table[0], table[1], at), permute(table[2], table[3], at), upper);
  }
  __device__ __forceinline__ uint32_t one_of_four(uint32_t at, uint32_t odd, uint32_t upper) const {
    return permute(permute(permute(low[0], low[1], at), permute(low[2], low[3], at), odd),
                   permute(permute(low[4], low[5], at), permute(low[6], low[7], at), odd), upper);
  }
};

template <Code C>
using DecoderOf = std::conditional_t<is_wide(C), WideDecoder<C>, Decoder<C>>;

/// Scalars (codec/scalar.h) are read times 2^-87, which saves the exponent's shift; numbers below 2^-39 lose their digits.
inline constexpr float kScalarUnit = 0x1p87f;
template <bool kSigned>
__device__ __forceinline__ float2 scalar_pair(uint32_t w) {
  if constexpr (kSigned)
    return {__uint_as_float((w << 16 & 0x80000000u) | (w << 14 & 0x1fffc000u)),
            __uint_as_float((w & 0x80000000u) | (w >> 2 & 0x1fffc000u))};
  else
    return {__uint_as_float(w << 13 & 0x1fffe000u), __uint_as_float(w >> 3 & 0x1fffe000u)};
}
/// x + log2 |scalar| + 40 + kLogShift, at most 0.09 too small: the formats' bits are nearly a logarithm.
template <bool kSigned>
inline constexpr float kLogShift = kSigned ? 16384.0f : 8192.0f;
template <bool kSigned>
__device__ __forceinline__ float add_log_low(float x, uint32_t w) {
  const uint32_t bits = permute(kSigned ? w & 0x7fff7fffu : w, 0x4b000000u, 0x7610);
  return fmaf(__uint_as_float(bits), kSigned ? 1 / 512.0f : 1 / 1024.0f, x);
}
template <bool kSigned>
__device__ __forceinline__ float add_log_high(float x, uint32_t w) {
  const uint32_t bits = permute(kSigned ? w & 0x7fff7fffu : w, 0x4b000000u, 0x7632);
  return fmaf(__uint_as_float(bits), kSigned ? 1 / 512.0f : 1 / 1024.0f, x);
}

}  // namespace tersor::kernels::cuda
