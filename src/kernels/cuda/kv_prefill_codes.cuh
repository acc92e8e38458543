// Tiles of codes to operands in shared memory: of keys two warps take 32 tokens each, of values two take every other block of 16
// dimensions, and two more of either kind do the same with every other tile.
#pragma once

#include "kernels/cuda/kv_prefill_shape.cuh"

namespace tersor::kernels::cuda {

// Exponents, in the scalars' own bias of 40, from which on a tile's numbers are relative to its largest; and where these come to lie.
inline constexpr int kLeastExponent = 22, kAffineUnit = 52;
/// What the largest norm's exponent becomes in 16 bits: norms times levels are below 2^15, wide codes' levels below 2^9.
constexpr int norm_exponent(Code c) { return is_wide(c) ? 20 : kLeastExponent; }
constexpr int norm_unit(Code c) { return norm_exponent(c) + 25; }

__device__ __forceinline__ __half2 half2_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }

/// Four codes: turboquant's levels u + 1/2 as the low and the high bytes of 16-bit floats, or of wide codes their parts, 128 added; affine
/// codes as they are in `low`.
struct FourCodes {
  uint32_t low, high;
};
inline constexpr float kHalfLevel = 2.5f;
/// Places of two codes among four.
enum class Places : int { first = 0x10, second = 0x32, even = 0x20, odd = 0x31 };

/// Turns a unit's words into its eight registers of four codes.
template <Code C>
struct NumberDecoder {
  static constexpr int kWords = form_of(C).words();
  uint32_t low[2] = {}, high[2] = {};  // tables of eight bytes

  __device__ explicit NumberDecoder(const Levels& levels) {
    if constexpr (!is_affine(C)) {
      constexpr int kFirst = C == Code::turbo4 ? 8 : 0, kCount = C == Code::turbo2 ? 4 : C == Code::turbo1 ? 2 : 8;
      int first = kFirst;
      asm volatile("" : "+r"(first));  // here and now: tables of all kinds of codes at once would take many registers
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t bits = __half_as_ushort(__float2half_rn(static_cast<float>(levels.u[first + i]) + 0.5f));
        low[i / 4] |= (bits & 0xffu) << 8 * (i % 4), high[i / 4] |= (bits >> 8) << 8 * (i % 4);
      }
      asm volatile("" : "+r"(low[0]), "+r"(low[1]), "+r"(high[0]), "+r"(high[1]));
    }
  }
  __device__ __forceinline__ FourCodes look_up(uint32_t selectors, uint32_t signs) const {
    return {permute(low[0], low[1], selectors), permute(high[0], high[1], selectors) ^ signs};
  }
  /// Register r of the unit.
  __device__ __forceinline__ FourCodes at(const uint32_t (&w)[kWords], int r) const {
    if constexpr (C == Code::turbo4) {
      const uint32_t word = w[r >> 1], selectors = word & 0x77777777u;
      return r & 1 ? look_up(selectors >> 16, word << 4 & 0x80808080u) : look_up(selectors, word & 0x80808080u);
    } else if constexpr (C == Code::turbo3) {
      const uint32_t selectors =
          r < 6 ? w[r >> 1] & 0x77777777u : (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
      return look_up(r & 1 ? selectors >> 16 : selectors, 0);
    } else if constexpr (C == Code::turbo2) {
      const uint32_t selectors = w[r >> 2] >> (2 * (r >> 1 & 1)) & 0x33333333u;
      return look_up(r & 1 ? selectors >> 16 : selectors, 0);
    } else if constexpr (C == Code::turbo1) {
      const uint32_t selectors = w[0] >> (r >> 1) & 0x11111111u;
      return look_up(r & 1 ? selectors >> 16 : selectors, 0);
    } else {
      constexpr int kBits = code_bits(C), kFields = 8 / kBits;
      constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
      return {kFields == 1 ? w[r] : w[r / kFields] >> (kBits * (r % kFields)) & kMask, 0};
    }
  }
};

/// The same for wide codes.
template <Code C>
struct WideNumberDecoder {
  static constexpr int kWords = form_of(C).words();
  WideDecoder<C> decoder;
  __device__ explicit WideNumberDecoder(const Levels& levels) : decoder(levels) {}
  __device__ __forceinline__ FourCodes at(const uint32_t (&w)[kWords], int r) const {
    uint32_t a[2], b[2];
    decoder.decode_word(w, r >> 1, a[0], b[0], a[1], b[1]);  // the other register's half is left out where it is not used
    return {a[r & 1] ^ 0x80808080u, b[r & 1] ^ 0x80808080u};
  }
};
template <Code C>
using NumbersOf = std::conditional_t<is_wide(C), WideNumberDecoder<C>, NumberDecoder<C>>;

/// Two of four codes as numbers: level * scale, or code * scale + bias; of wide codes bias is kHalfLevel * scale.
template <Code C, Places kPlaces>
__device__ __forceinline__ uint32_t numbers_of(const FourCodes& codes, __half2 scale, __half2 bias) {
  constexpr int kFirst = static_cast<int>(kPlaces) & 3, kSecond = static_cast<int>(kPlaces) >> 4;
  constexpr int kSelector = kFirst | 4 << 4 | kSecond << 8 | 4 << 12;
  if constexpr (is_affine(C)) {
    const __half2 code = __hadd2(half2_of(permute(codes.low, 0x64646464u, kSelector)), __float2half2_rn(-1024.0f));
    return bits_of(__hfma2(code, scale, bias));
  } else if constexpr (is_wide(C)) {
    // Bytes x + 128 read as 1152 + x. Everything up to low + 4 high is whole and exact; levels are 2.5 more.
    const __half2 low = half2_of(permute(codes.low, 0x64646464u, kSelector)), high = half2_of(permute(codes.high, 0x64646464u, kSelector));
    const __half2 whole = __hadd2(__hfma2(high, __float2half2_rn(4.0f), __float2half2_rn(-5.0f * 1152)), low);
    return bits_of(__hfma2(whole, scale, bias));
  } else {
    return bits_of(__hmul2(half2_of(permute(codes.low, codes.high, kSelector | kFirst << 4 | kSecond << 12)), scale));
  }
}

template <Code C>
__device__ __forceinline__ void set_biases(__half2 scale0, __half2 scale1, __half2& bias0, __half2& bias1) {
  if constexpr (is_wide(C)) bias0 = __hmul2(scale0, __float2half2_rn(kHalfLevel)), bias1 = __hmul2(scale1, __float2half2_rn(kHalfLevel));
}

__device__ __forceinline__ unsigned larger_half(uint32_t w) { return max(w & 0xffffu, w >> 16); }
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) { return __vimax3_u16x2(a, b, b); }
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b, uint32_t c) { return __vimax3_u16x2(a, b, c); }
/// Two norms' bits (codec/scalar.h) as 16-bit floats relative to an exponent, whose floor both halves of `floor` hold; those 2^22 below it
/// become zero.
__device__ __forceinline__ uint32_t norms_relative(uint32_t w, uint32_t floor) { return larger_halves(w, floor) - floor; }
__device__ __forceinline__ uint32_t floor_of(Code c, int top) { return static_cast<uint32_t>(top - norm_exponent(c)) * 0x04000400u; }
/// Largest exponent of affine numbers whose largest scales and biases these are.
__device__ __forceinline__ int exponent_of(uint32_t scales, uint32_t biases, int bits) {
  return max(static_cast<int>(larger_half(scales) >> 9) + bits, static_cast<int>(larger_half(biases) >> 9));
}
__device__ __forceinline__ int warp_top(int exponent) {
  return max(static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(exponent))), kLeastExponent);
}

/// The keys of half of a tile's tokens: a lane has tokens 16 m + 8 half + lane / 4.
template <int D, Code C>
struct KeyCodes {
  static constexpr bool kAffine = is_affine(C);
  static constexpr int kSteps = D / 32, kUnits = kSteps + (D % 32 != 0);
  static constexpr int kWords = NumbersOf<C>::kWords, kGroups = scalar_groups(C, D);
  uint32_t words[kUnits][kWords];
  uint2 scalars[scalar_rows(C, D)];  // [m][half]

  __device__ __forceinline__ void load(const uint8_t* tile, int which, int lane) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) load_unit<kWords>(tile + (i < kSteps ? 2 * i + which : 2 * kSteps) * (kWords * 128), lane, words[i]);
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
  __device__ __forceinline__ int exponent() const {
    if constexpr (!kAffine) return warp_top(static_cast<int>(larger_half(larger_halves(scalars[0].x, scalars[0].y)) >> 10));
    uint32_t scales = 0, biases = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      scales = larger_halves(scales, scalars[g].x & 0x7fff7fffu, scalars[g].y & 0x7fff7fffu);
      if constexpr (kAffine) biases = larger_halves(biases, scalars[kGroups + g].x & 0x7fff7fffu, scalars[kGroups + g].y & 0x7fff7fffu);
    }
    return warp_top(exponent_of(scales, biases, code_bits(C)));
  }
  /// Scale and bias of token 16 m + 8 half in both halves, of a group of dimensions.
  __device__ __forceinline__ void prepare(int top, int group, __half2 (&scale)[4], __half2 (&bias)[4]) const {
    const uint32_t floor = floor_of(C, top);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint32_t w = m ? scalars[group].y : scalars[group].x;
      if constexpr (kAffine) {
        const float unit = power_of_two(87 + kAffineUnit - top);
        const float2 s = scalar_pair<true>(w), b = scalar_pair<true>(m ? scalars[kGroups + group].y : scalars[kGroups + group].x);
        scale[2 * m] = __float2half2_rn(s.x * unit), scale[2 * m + 1] = __float2half2_rn(s.y * unit);
        bias[2 * m] = __float2half2_rn(b.x * unit), bias[2 * m + 1] = __float2half2_rn(b.y * unit);
      } else {
        const uint32_t norms = norms_relative(w, floor);
        scale[2 * m] = half2_of(permute(norms, 0, 0x1010)), scale[2 * m + 1] = half2_of(permute(norms, 0, 0x3232));
        set_biases<C>(scale[2 * m], scale[2 * m + 1], bias[2 * m], bias[2 * m + 1]);
      }
    }
  }
  /// Returns what stored numbers are to be multiplied with.
  template <class S>
  __device__ __forceinline__ float store(uint32_t keys, const NumbersOf<C>& decoder, const Levels& levels, int which, int lane) const {
    __half2 scale[4], bias[4];
    const int top = exponent(), g = lane >> 2, t = lane & 3;
    const uint32_t row = keys + ((g >> 1) + 4 * which) * S::kKeyRows + (g & 1) * 16;
#pragma unroll
    for (int step = 0; step < kUnits; ++step) {
      if (step == 0 || (kGroups > 1 && step % 2 == 0)) prepare(top, kGroups > 1 ? step / 2 : 0, scale, bias);
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // token 16 (k / 2) + 8 (k % 2)
        const uint32_t to = row + (4 * (k >> 1) + 2 * (k & 1)) * 16;
        if (step < kSteps) {
          const FourCodes low = decoder.at(words[step], 4 * (k >> 1) + (k & 1)), high = decoder.at(words[step], 4 * (k >> 1) + 2 + (k & 1));
          store_shared(
              to + (4 * step + t) * kCoreStride,
              uint4{numbers_of<C, Places::first>(low, scale[k], bias[k]), numbers_of<C, Places::second>(low, scale[k], bias[k]),
                    numbers_of<C, Places::first>(high, scale[k], bias[k]), numbers_of<C, Places::second>(high, scale[k], bias[k])});
        } else {
          const FourCodes x = which ? decoder.at(words[step], 4 + k) : decoder.at(words[step], k);
          store_shared(to + (4 * kSteps + (t >> 1)) * kCoreStride + 8 * (t & 1),
                       uint2{numbers_of<C, Places::first>(x, scale[k], bias[k]), numbers_of<C, Places::second>(x, scale[k], bias[k])});
        }
      }
    }
    return kAffine ? power_of_two(top - kAffineUnit) : power_of_two(top - norm_unit(C)) * (2 * levels.step);
  }
};

/// The values of every other block of 16 dimensions: a lane has dimensions lane / 4 and lane / 4 + 8 of each, and tokens 16 m + 8 half + 2
/// (lane % 4) + {0, 1}.
template <int D, Code C>
struct ValueCodes {
  static constexpr bool kAffine = is_affine(C);
  static constexpr int kBlocks = D / 16, kMine = (kBlocks + 1) / 2, kWords = NumbersOf<C>::kWords, kGroups = scalar_groups(C, D);
  static constexpr int kUnit = kAffine ? kAffineUnit : norm_unit(C);
  uint32_t words[kMine][kWords];
  uint4 scalars[scalar_rows(C, D)][2];  // of tokens 2 t and 2 t + 1: [m][half]

  __device__ __forceinline__ void load(const uint8_t* side, int which, int lane) {
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      if (2 * i + which < kBlocks) load_unit<kWords>(side + scalar_bytes(C, D) + (2 * i + which) * (kWords * 128), lane, words[i]);
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
    uint32_t most[2] = {0, 0};  // of scales or norms, and of biases
#pragma unroll
    for (int r = 0; r < scalar_rows(C, D); ++r)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        constexpr uint32_t kSign = kAffine ? 0x7fff7fffu : ~0u;
        const uint4 w = scalars[r][k];
        uint32_t& m = most[kAffine && r >= kGroups];
        m = larger_halves(larger_halves(m, w.x & kSign, w.y & kSign), w.z & kSign, w.w & kSign);
      }
    if constexpr (kAffine) return warp_top(exponent_of(most[0], most[1], code_bits(C)));
    return warp_top(static_cast<int>(larger_half(most[0]) >> 10));
  }
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
        const uint32_t floor = floor_of(C, top), w0 = norms_relative(s0, floor), w1 = norms_relative(s1, floor);
        scale[m][0] = half2_of(permute(w0, w1, 0x5410)), scale[m][1] = half2_of(permute(w0, w1, 0x7632));
        set_biases<C>(scale[m][0], scale[m][1], bias[m][0], bias[m][1]);
      }
    }
  }
  template <class S>
  __device__ __forceinline__ void store(uint32_t values, const NumbersOf<C>& decoder, int top, int which, int lane) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t row = values + t * kCoreStride + g * 16;
    __half2 scale[4][2], bias[4][2];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int block = 2 * i + which;
      if (i == 0 || (kGroups > 1 && i % 2 == 0)) prepare(top, kGroups > 1 ? i / 2 : 0, scale, bias);
      if (block >= kBlocks) break;
#pragma unroll
      for (int half = 0; half < 2; ++half)  // of the dimensions
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // of the tokens
          const FourCodes x = decoder.at(words[i], 4 * h + half), y = decoder.at(words[i], 4 * h + 2 + half);
          store_shared(row + (2 * block + half) * S::kValueRows + 4 * h * kCoreStride,
                       uint4{numbers_of<C, Places::even>(x, scale[2 * h][0], bias[2 * h][0]),
                             numbers_of<C, Places::odd>(x, scale[2 * h][1], bias[2 * h][1]),
                             numbers_of<C, Places::even>(y, scale[2 * h + 1][0], bias[2 * h + 1][0]),
                             numbers_of<C, Places::odd>(y, scale[2 * h + 1][1], bias[2 * h + 1][1])});
        }
    }
  }
};

}  // namespace tersor::kernels::cuda
