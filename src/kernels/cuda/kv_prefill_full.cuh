// `full` tiles to operands in shared memory: four tiles of 16 tokens are one. As kv_prefill_codes.cuh otherwise.
#pragma once

#include "kernels/cuda/kv_prefill_shape.cuh"

namespace tersor::kernels::cuda {

// Where the largest number of a tile that is converted comes to lie, as a binary logarithm.
inline constexpr int kFullTop = 13;

/// Exponent of the warp's largest number, at least -60, times `factor`.
template <int N>
__device__ __forceinline__ int largest_exponent(const uint4 (&words)[N], bool half, float factor) {
  float most = 0x1p-60f;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float2 x = unpack_pair((&words[i].x)[r], half);
      most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)) * factor);
    }
  return static_cast<int>(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23) - 127;
}
__device__ __forceinline__ uint32_t scaled_halves(uint32_t w, bool half, float factor) {
  const float2 x = unpack_pair(w, half);
  const __half2 y = __floats2half2_rn(x.x * factor, x.y * factor);
  return *reinterpret_cast<const uint32_t*>(&y);
}

/// A `full` side of 16 tokens of a tile that may not be there: its words are zero then.
template <int D, int kBlocks, int kStep>
__device__ __forceinline__ void load_full(const uint8_t* side, bool there, int first, int lane, uint4* words) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    words[i] = uint4{0, 0, 0, 0};
    if (there && first + i * kStep < D / 16) words[i] = *reinterpret_cast<const uint4*>(side + ((first + i * kStep) * 32 + lane) * 16);
  }
}

/// Keys as they are, in the order of dimensions that `full` caches have: one of the two tiles of 16 tokens of a warp. Registers:
/// [dimensions
/// + 8][token + 8].
template <int D>
struct KeyFull {
  static constexpr int kBlocks = D / 16, kSide = side_bytes(Code::full, D), kPieces = 2;
  uint4 words[kBlocks];

  __device__ __forceinline__ void load(const uint8_t* tile, int tokens, int which, int piece, int lane) {
    const int m = 2 * which + piece;
    load_full<D, kBlocks, 1>(tile + m * 2 * kSide, 16 * m < tokens, 0, lane, words);
  }
  template <class S>
  __device__ __forceinline__ void store(uint32_t keys, int, int which, int piece, int lane) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t row = keys + ((g >> 1) + 4 * which) * S::kKeyRows + (g & 1) * 16 + 64 * piece;
#pragma unroll
    for (int step = 0; step < (kBlocks + 1) / 2; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // of the tokens
        const uint32_t to = row + half * 32;
        const uint4 &a = words[2 * step], &b = words[min(2 * step + 1, kBlocks - 1)];
        const uint2 x = half ? uint2{a.y, a.w} : uint2{a.x, a.z}, y = half ? uint2{b.y, b.w} : uint2{b.x, b.z};
        if (2 * step + 1 == kBlocks)
          store_shared(to + (4 * step + (t >> 1)) * kCoreStride + 8 * (t & 1), x);
        else
          store_shared(to + (4 * step + t) * kCoreStride, uint4{x.x, x.y, y.x, y.y});
      }
  }
};

/// Keys beside codes: converted, in their order of dimensions. Read twice: few tokens are kept in full, registers are not to be had.
template <class S>
__device__ __forceinline__ float convert_keys(uint32_t keys, const uint8_t* tile, int tokens, bool half, int which, int lane) {
  constexpr int D = S::D, kBlocks = D / 16;
  const int g = lane >> 2, t = lane & 3;
  uint4 w[2];
  const auto load = [&](int block) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_full<D, 1, 1>(tile + (2 * which + m) * 2 * KeyFull<D>::kSide, 32 * which + 16 * m < tokens, block, lane, w + m);
  };
  int most = -127;
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) load(b), most = max(most, largest_exponent(w, half, 1));
  const int exponent = most - kFullTop;
  const float factor = power_of_two(-exponent);
  const uint32_t row = keys + ((g >> 1) + 4 * which) * S::kKeyRows + (g & 1) * 16;
#pragma unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    load(b);
    const bool odd_one = D % 32 && b == kBlocks - 1;
    const uint32_t at = row + 4 * (b >> 1) * kCoreStride + (odd_one ? 4 * t : (t >> 1) * kCoreStride + 4 * (t & 1) + 8 * (b & 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& x = w[i >> 1];
      const uint32_t to = at + (4 * (i >> 1) + 2 * (i & 1)) * 16;
      store_shared(to, scaled_halves(i & 1 ? x.y : x.x, half, factor));
      store_shared(to + (odd_one ? 1 : 2) * kCoreStride, scaled_halves(i & 1 ? x.w : x.z, half, factor));
    }
  }
  return power_of_two(exponent);
}

/// A block of 16 dimensions of 64 values; registers of a tile of 16: [tokens + 8][dimension + 8].
template <int D>
struct ValueBlock {
  uint4 words[4];

  /// sides: of four tiles, `stride` bytes from one to the next.
  __device__ __forceinline__ void load(const uint8_t* sides, int stride, int tokens, int block, int lane) {
#pragma unroll
    for (int m = 0; m < 4; ++m) load_full<D, 1, 1>(sides + m * stride, 16 * m < tokens, block, lane, words + m);
  }
  /// What stands where no token is must not be a NaN.
  __device__ __forceinline__ void cut(int tokens, int lane) {
    if (tokens >= kPrefillTokens) return;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int token = 16 * m + 8 * (r >> 1) + 2 * (lane & 3);
        (&words[m].x)[r] &= (token < tokens ? 0xffffu : 0u) | (token + 1 < tokens ? 0xffff0000u : 0u);
      }
  }
  template <class S, class F>
  __device__ __forceinline__ void store(uint32_t values, int block, int lane, const F& number) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t row = values + t * kCoreStride + g * 16 + 2 * block * S::kValueRows;
#pragma unroll
    for (int half = 0; half < 2; ++half)  // of the dimensions
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // of the tokens
        const uint4 &a = words[2 * h], &b = words[2 * h + 1];
        store_shared(row + half * S::kValueRows + 4 * h * kCoreStride, half ? uint4{number(a.y), number(a.w), number(b.y), number(b.w)}
                                                                            : uint4{number(a.x), number(a.z), number(b.x), number(b.z)});
      }
  }
};

/// Values as they are: two of a warp's blocks at a time.
template <int D>
struct ValueFull {
  static constexpr int kBlocks = D / 16, kSide = side_bytes(Code::full, D), kPieces = (kBlocks + 3) / 4;
  ValueBlock<D> blocks[2];

  __device__ __forceinline__ void load(const uint8_t* tile, int tokens, int which, int piece, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) blocks[i].load(tile + kSide, 2 * kSide, tokens, 4 * piece + 2 * i + which, lane);
  }
  template <class S>
  __device__ __forceinline__ void store(uint32_t values, int tokens, int which, int piece, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = 4 * piece + 2 * i + which;
      if (block >= kBlocks) break;
      blocks[i].cut(tokens, lane);
      blocks[i].template store<S>(values, block, lane, [](uint32_t w) { return w; });
    }
  }
};

/// Values beside codes. top_with(exponent): the exponent to store them with.
template <class S, class F>
__device__ __forceinline__ void convert_values(uint32_t values, const uint8_t* tile, int tokens, bool half, float factor, int which,
                                               int lane, const F& top_with) {
  constexpr int kSide = side_bytes(Code::full, S::D);
  ValueBlock<S::D> block;
  int most = -127;
#pragma unroll 1
  for (int b = which; b < S::D / 16; b += 2) {
    block.load(tile + kSide, 2 * kSide, tokens, b, lane);
    block.cut(tokens, lane);
    most = max(most, largest_exponent(block.words, half, factor));
  }
  const float scale = factor * power_of_two(-top_with(most - kFullTop));
#pragma unroll 1
  for (int b = which; b < S::D / 16; b += 2) {
    block.load(tile + kSide, 2 * kSide, tokens, b, lane);
    block.cut(tokens, lane);
    block.template store<S>(values, b, lane, [&](uint32_t w) { return scaled_halves(w, half, scale); });
  }
}

}  // namespace tersor::kernels::cuda
