// Tiles of codes to operands in shared memory, by one warp each: two warps for keys, which take 32 tokens each, and two for values, which
// take every other block of 16 dimensions.
#pragma once

#include "kernels/cuda/kv_prefill_shape.cuh"

namespace tersor::kernels::cuda {

// Exponents, in the scalars' own bias of 40, from which on a tile's numbers are relative to its largest; and where these come to lie.
inline constexpr int kLeastExponent = 22, kNormUnit = 47, kAffineUnit = 52;

/// Two bytes as 16-bit floats, less what a code of zero is worth.
template <int kSelector, bool kUnsigned>
__device__ __forceinline__ __half2 halves_of(uint32_t bytes) {
  const uint32_t bits = permute(bytes, 0x64646464u, kSelector);
  return __hadd2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(kUnsigned ? -1024.0f : -1152.0f));
}
/// code * scale + bias
template <int kSelector, bool kUnsigned>
__device__ __forceinline__ uint32_t numbers_of(uint32_t bytes, __half2 scale, __half2 bias) {
  const __half2 x = __hfma2(halves_of<kSelector, kUnsigned>(bytes), scale, bias);
  return *reinterpret_cast<const uint32_t*>(&x);
}
inline constexpr int kBytes01 = 0x4140, kBytes23 = 0x4342, kBytes02 = 0x4240, kBytes13 = 0x4341;

/// Decodes to bytes that are 128 more than the level's u, or to affine codes as they are.
template <Code C>
struct OffsetDecoder : Decoder<C> {
  __device__ explicit OffsetDecoder(const Levels& levels) : Decoder<C>(levels) {
    if constexpr (!is_affine(C)) this->low ^= 0x80808080u, this->high ^= 0x80808080u;
    asm volatile("" : "+r"(this->low), "+r"(this->high));
  }
};

__device__ __forceinline__ __half2 half2_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ unsigned larger_half(uint32_t w) { return max(w & 0xffffu, w >> 16); }
/// Two norms' bits (codec/scalar.h) as 16-bit floats relative to an exponent; those 2^22 below it become zero.
__device__ __forceinline__ uint32_t norms_relative(uint32_t w, uint32_t floor) {
  const uint32_t low = max(w & 0xffffu, floor) - floor, high = max(w >> 16, floor) - floor;
  return low | high << 16;
}
/// Largest exponent of a pair of scales plus `more`, or of a pair of biases.
__device__ __forceinline__ int scale_exponent(uint32_t w, int more) {
  return static_cast<int>(larger_half(w & 0x7fff7fffu) >> 9) + more;
}

/// The keys of 32 tokens of a tile: a lane has tokens 16 m + 8 half + lane / 4.
template <int D, Code C>
struct KeyCodes {
  static constexpr bool kAffine = is_affine(C);
  static constexpr int kSteps = D / 32, kUnits = kSteps + (D % 32 != 0), kWords = Decoder<C>::kWords, kGroups = scalar_groups(C, D);
  static constexpr bool kAhead = !kAffine;  // room in registers for two tiles
  uint32_t words[kUnits][kWords];
  uint2 scalars[scalar_rows(C, D)];  // [m][half]

  __device__ __forceinline__ void load(const uint8_t* tile, int which, int lane) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) load_unit<kWords>(tile + (u < kSteps ? 2 * u + which : 2 * kSteps) * Decoder<C>::kUnitBytes, lane, words[u]);
#pragma unroll
    for (int r = 0; r < scalar_rows(C, D); ++r)
      scalars[r] = *reinterpret_cast<const uint2*>(tile + code_bytes(C, D) + (r * 8 + (lane >> 2)) * 16 + which * 8);
  }
  /// Scalars of tokens that are not there yet become zero.
  __device__ __forceinline__ void cut(int tokens, int which, int lane) {
    const int token = 32 * which + (lane >> 2);
#pragma unroll
    for (uint2& s : scalars) {
      if (token >= tokens) s.x &= 0xffff0000u;
      if (token + 8 >= tokens) s.x &= 0x0000ffffu;
      if (token + 16 >= tokens) s.y &= 0xffff0000u;
      if (token + 24 >= tokens) s.y &= 0x0000ffffu;
    }
  }
  /// Scale and bias of token 16 m + 8 half in both halves, of a group of dimensions. Returns what stored numbers are to be multiplied with.
  __device__ __forceinline__ float prepare(const Levels& levels, __half2 (&scale)[kGroups][4], __half2 (&bias)[kGroups][4]) const {
    if constexpr (kAffine) {
      int most = kLeastExponent;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint2 s = scalars[g], b = scalars[kGroups + g];
        most = max(most, max(scale_exponent(s.x, codec::packing_bits(packing_of(C))), scale_exponent(s.y, codec::packing_bits(packing_of(C)))));
        most = max(most, max(scale_exponent(b.x, 0), scale_exponent(b.y, 0)));
      }
      most = static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(most)));
      const float unit = power_of_two(87 + kAffineUnit - most);
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 s = scalar_pair<true>(i < 2 ? scalars[g].x : scalars[g].y);
          const float2 b = scalar_pair<true>(i < 2 ? scalars[kGroups + g].x : scalars[kGroups + g].y);
          scale[g][i] = __float2half2_rn((i & 1 ? s.y : s.x) * unit), bias[g][i] = __float2half2_rn((i & 1 ? b.y : b.x) * unit);
        }
      return power_of_two(most - kAffineUnit);
    } else {
      const unsigned most = max(larger_half(scalars[0].x), larger_half(scalars[0].y));
      const int top = max(static_cast<int>(__reduce_max_sync(~0u, most) >> 10), kLeastExponent);
      const uint32_t floor = (top - kLeastExponent) << 10;
      const uint32_t w[2] = {norms_relative(scalars[0].x, floor), norms_relative(scalars[0].y, floor)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scale[0][i] = half2_of(permute(w[i >> 1], 0, i & 1 ? 0x3232 : 0x1010));
        bias[0][i] = __hmul2(scale[0][i], __float2half2_rn(0.5f));
      }
      return power_of_two(top - kNormUnit) * (2 * levels.step);
    }
  }
  template <class S>
  __device__ __forceinline__ float store(uint32_t keys, const OffsetDecoder<C>& decoder, const Levels& levels, int which, int lane) const {
    __half2 scale[kGroups][4], bias[kGroups][4];
    const float unit = prepare(levels, scale, bias);
    const int g = lane >> 2, t = lane & 3;
    const uint32_t row = keys + ((g >> 1) + 4 * which) * S::kKeyRows + (g & 1) * 16;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int group = kGroups == 1 ? 0 : u * 32 / kAffineGroup;
      uint32_t a[8];
      decoder.decode(words[u], a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // token 16 (i / 2) + 8 (i % 2)
        const uint32_t to = row + (4 * (i >> 1) + 2 * (i & 1)) * 16;
        const __half2 s = scale[group][i], b = bias[group][i];
        if (u < kSteps) {
          const uint32_t low = a[4 * (i >> 1) + (i & 1)], high = a[4 * (i >> 1) + 2 + (i & 1)];
          store_shared(to + (4 * u + t) * kCoreStride,
                       uint4{numbers_of<kBytes01, kAffine>(low, s, b), numbers_of<kBytes23, kAffine>(low, s, b),
                             numbers_of<kBytes01, kAffine>(high, s, b), numbers_of<kBytes23, kAffine>(high, s, b)});
        } else {
          const uint32_t x = which ? a[4 + i] : a[i];
          store_shared(to + (4 * kSteps + (t >> 1)) * kCoreStride + 8 * (t & 1),
                       uint2{numbers_of<kBytes01, kAffine>(x, s, b), numbers_of<kBytes23, kAffine>(x, s, b)});
        }
      }
    }
    return unit;
  }
};

/// The values of every other block of 16 dimensions: a lane has dimensions lane / 4 and lane / 4 + 8 of each, and tokens 16 m + 8 half + 2
/// (lane % 4) + {0, 1}.
template <int D, Code C>
struct ValueCodes {
  static constexpr bool kAffine = is_affine(C);
  static constexpr int kBlocks = D / 16, kMine = (kBlocks + 1) / 2, kWords = Decoder<C>::kWords, kGroups = scalar_groups(C, D);
  static constexpr bool kAhead = !kAffine;
  uint32_t words[kMine][kWords];
  uint4 scalars[scalar_rows(C, D)][2];  // of tokens 2 t and 2 t + 1: [m][half]

  __device__ __forceinline__ void load(const uint8_t* side, int which, int lane) {
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      if (2 * i + which < kBlocks)
        load_unit<kWords>(side + scalar_bytes(C, D) + (2 * i + which) * Decoder<C>::kUnitBytes, lane, words[i]);
#pragma unroll
    for (int r = 0; r < scalar_rows(C, D); ++r)
#pragma unroll
      for (int k = 0; k < 2; ++k) scalars[r][k] = *reinterpret_cast<const uint4*>(side + (r * 8 + 2 * (lane & 3) + k) * 16);
  }
  __device__ __forceinline__ void cut(int tokens, int, int lane) {
#pragma unroll
    for (auto& row : scalars)
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          uint32_t& w = (&row[k].x)[m];
          const int token = 16 * m + 2 * (lane & 3) + k;
          if (token >= tokens) w &= 0xffff0000u;
          if (token + 8 >= tokens) w &= 0x0000ffffu;
        }
  }
  __device__ __forceinline__ int exponent() const {
    int most = kLeastExponent;
    if constexpr (kAffine) {
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          most = max(most, scale_exponent((&scalars[r][i >> 2].x)[i & 3], r < kGroups ? codec::packing_bits(packing_of(C)) : 0));
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) most = max(most, static_cast<int>(larger_half((&scalars[0][i >> 2].x)[i & 3]) >> 10));
    }
    return static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(most)));
  }
  static constexpr int kUnit = kAffine ? kAffineUnit : kNormUnit;
  /// Scales and biases of the pairs of tokens 16 m + 8 half + 2 t + {0, 1}, relative to an exponent.
  __device__ __forceinline__ void prepare(int top, int group, __half2 (&scale)[4][2], __half2 (&bias)[4][2]) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t s0 = (&scalars[group][0].x)[m], s1 = (&scalars[group][1].x)[m];
      if constexpr (kAffine) {
        const float unit = power_of_two(87 + kAffineUnit - top);
        const uint32_t b0 = (&scalars[kGroups + group][0].x)[m], b1 = (&scalars[kGroups + group][1].x)[m];
        const float2 x0 = scalar_pair<true>(s0), x1 = scalar_pair<true>(s1), y0 = scalar_pair<true>(b0), y1 = scalar_pair<true>(b1);
        scale[m][0] = __floats2half2_rn(x0.x * unit, x1.x * unit), scale[m][1] = __floats2half2_rn(x0.y * unit, x1.y * unit);
        bias[m][0] = __floats2half2_rn(y0.x * unit, y1.x * unit), bias[m][1] = __floats2half2_rn(y0.y * unit, y1.y * unit);
      } else {
        const uint32_t floor = (top - kLeastExponent) << 10, w0 = norms_relative(s0, floor), w1 = norms_relative(s1, floor);
        scale[m][0] = half2_of(permute(w0, w1, 0x5410)), scale[m][1] = half2_of(permute(w0, w1, 0x7632));
        bias[m][0] = __hmul2(scale[m][0], __float2half2_rn(0.5f)), bias[m][1] = __hmul2(scale[m][1], __float2half2_rn(0.5f));
      }
    }
  }
  template <class S>
  __device__ __forceinline__ void store(uint32_t values, const OffsetDecoder<C>& decoder, int top, int which, int lane) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t row = values + t * kCoreStride + g * 16;
    __half2 scale[4][2], bias[4][2];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int block = 2 * i + which;
      if (i == 0 || (kGroups > 1 && i % (kAffineGroup / 32) == 0)) prepare(top, kGroups > 1 ? i / (kAffineGroup / 32) : 0, scale, bias);
      if (block >= kBlocks) break;
      uint32_t a[8];
      decoder.decode(words[i], a);
#pragma unroll
      for (int half = 0; half < 2; ++half)  // of the dimensions
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // of the tokens
          const uint32_t x = a[4 * h + half], y = a[4 * h + 2 + half];
          store_shared(row + (2 * block + half) * S::kValueRows + 4 * h * kCoreStride,
                       uint4{numbers_of<kBytes02, kAffine>(x, scale[2 * h][0], bias[2 * h][0]),
                             numbers_of<kBytes13, kAffine>(x, scale[2 * h][1], bias[2 * h][1]),
                             numbers_of<kBytes02, kAffine>(y, scale[2 * h + 1][0], bias[2 * h + 1][0]),
                             numbers_of<kBytes13, kAffine>(y, scale[2 * h + 1][1], bias[2 * h + 1][1])});
        }
    }
  }
};

}  // namespace tersor::kernels::cuda
