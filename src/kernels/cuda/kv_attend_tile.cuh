// One tile of keys and values against the query vectors of a warp.
#pragma once

#include "kernels/cuda/kv_attend.h"
#include "kernels/cuda/kv_attend_state.cuh"

namespace tersor::kernels::cuda {

// An integer accumulator that starts at these bits reads as kMagic + n in floating point, |n| < 2^22. Low parts start at a multiple of 254,
// so that both starts can be taken away exactly at once.
inline constexpr float kMagic = 12582912.0f, kLowMagic = 49543 * 254.0f;
inline constexpr int kMagicBits = 0x4b400000, kLowMagicBits = 0x4b000000 + 49543 * 254 - (1 << 23);
inline constexpr float kBothMagic = kMagic + kLowMagic / 254;

/// The query vectors as a warp uses them.
template <int D, int NT, Code K>
struct AttendQuery {
  static constexpr int kGroups = K == Code::full ? 1 : scalar_groups(K, D);
  // Operand B: column lane / 4, dimensions 16 i + 4 (lane % 4). With wide keys it stays in shared memory, so that a loop goes over the
  // dimensions: unrolled, its instructions come from far away in every layer.
  static constexpr bool kShared = is_wide(K);
  uint32_t bytes[NT][K == Code::full || kShared ? 1 : D / 16];
  const uint32_t* rows[kShared ? NT : 1];
  __device__ __forceinline__ uint32_t word(int n, int i) const {
    if constexpr (kShared)
      return rows[n][4 * i];
    else
      return bytes[n][i];
  }
  float scale[NT];         // of scores over codes, logarithm base 2 included; of this lane's vector
  float full_scale[NT];    // of scores over 16-bit numbers
  float sum[NT][kGroups];  // affine: of the quantised query
  // Of the scores' accumulators, high and low; with turboquant half the query's sum is in it, as levels are u + 1/2.
  int start[NT][2];
};

/// What decides which tokens a lane's vectors see.
struct AttendView {
  const AttendParams& p;
  int batch, kv_head, vector0;  // vector of column 0

  struct Bounds {
    int lo, hi;
  };
  __device__ __forceinline__ int row(int vector) const { return p.rows == 1 ? vector >= p.group : vector / p.group; }
  __device__ __forceinline__ Bounds bounds(const AttendSegment& segment, int vector) const {
    const int position = p.position + row(vector);
    int lo = max(segment.lo_abs, position + segment.lo_rel), hi = min(max(segment.hi_abs, position + segment.hi_rel), segment.end);
    if (p.causal) hi = min(hi, position + 1);
    if (p.sliding_window > 0) lo = max(lo, position - p.sliding_window + 1);
    return {lo, hi};
  }
  /// The mask's row of a vector, or null.
  __device__ __forceinline__ const float* mask_row(int vector) const {
    const int r = row(vector), head = kv_head * p.group + vector - r * p.group;
    if (p.mask == nullptr || r >= p.rows) return nullptr;
    return p.mask + batch * p.mask_strides[0] + head * p.mask_strides[1] + r * p.mask_strides[2];
  }
  /// cap * tanh(logit / cap), with an absolute error of a few 1e-7 of the cap.
  __device__ __forceinline__ float capped(float logit) const {
    const float cap = p.soft_cap * 1.44269504f;
    return cap - __fdividef(2 * cap, 1 + exp2_fast(logit * __fdividef(2 * 1.44269504f, cap)));
  }
  /// The logit of a token at a position of the segment that the bounds are for.
  __device__ __forceinline__ float visible(float logit, const Bounds& bounds, const float* mask, int position) const {
    if (position < bounds.lo || position >= bounds.hi) return kHidden;
    return mask == nullptr ? logit : fmaxf(fmaf(mask[position * p.mask_strides[3]], 1.44269504f, logit), kHidden);
  }
};

/// Where a tile stands, for tokens that not every row sees.
struct TilePlace {
  const AttendSegment& segment;
  int tile;
  __device__ __forceinline__ bool clear() const { return tile >= segment.clear_begin && tile < segment.clear_end; }
  __device__ __forceinline__ int position(int tokens) const { return segment.first + tile * tokens; }
};

template <int D, int NT, Code K, Code V>
struct CodedTile {
  using State = AttendState<D, NT, V>;
  using Query = AttendQuery<D, NT, K>;
  static constexpr int kSteps = D / 32, kUnits = D / 16, kKeyGroups = Query::kGroups, kValueGroups = State::kGroups;
  static constexpr bool kKeyAffine = is_affine(K), kValueAffine = is_affine(V), kKeyWide = is_wide(K), kValueWide = is_wide(V);
  static constexpr int kKeyUnit = DecoderOf<K>::kUnitBytes, kValueUnit = DecoderOf<V>::kUnitBytes;

  // Integer scores, of wide codes those of the high parts as well. Half the query's sum, which both begin with, stands for u + 1/2 = (low +
  // 1/2) + 4 (high + 1/2).
  struct Scores {
    int c[NT][4][4];
    int high[kKeyWide ? NT : 1][4][4];
  };
  __device__ static __forceinline__ void reset(Scores& s, const Query& q) {
    reset(s.c, q);
    if constexpr (kKeyWide) reset(s.high, q);
  }

  // high: of wide codes alone.
  template <class Any>
  __device__ static __forceinline__ void decode(const Any& decoder, const uint8_t* unit, int lane, uint32_t (&a)[8], uint32_t (&high)[8]) {
    if constexpr (std::is_same_v<Any, WideDecoder<Code::turbo5>> || std::is_same_v<Any, WideDecoder<Code::turbo6>>)
      decoder.decode(unit, lane, a, high);
    else
      decoder.decode(unit, lane, a);
  }

  __device__ static __forceinline__ void reset(int (&c)[NT][4][4], const Query& q) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int m = 0; m < 4; ++m) c[n][m][0] = c[n][m][2] = q.start[n][0], c[n][m][1] = c[n][m][3] = q.start[n][1];
  }

  // The score of a query's high and low part.
  __device__ static __forceinline__ float whole(int high, int low) {
    return fmaf(__int_as_float(low), 1 / kLowParts, __int_as_float(high) - kBothMagic);
  }

  // Integer scores of the dimensions of group g to floats.
  __device__ static __forceinline__ void add_scores(const Scores& from, const Query& q, const uint8_t* scalars, int g, int row,
                                                    float (&s)[NT][8]) {
    const auto& c = from.c;
    const uint4 scales = *reinterpret_cast<const uint4*>(scalars + (g * 8 + row) * 16);
    uint4 biases{};
    if constexpr (kKeyAffine) biases = *reinterpret_cast<const uint4*>(scalars + ((kKeyGroups + g) * 8 + row) * 16);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float2 scale = scalar_pair<kKeyAffine>((&scales.x)[m]);
      const float2 bias = kKeyAffine ? scalar_pair<true>((&biases.x)[m]) : float2{0, 0};
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float x0 = whole(c[n][m][0], c[n][m][1]), x1 = whole(c[n][m][2], c[n][m][3]);
        if constexpr (kKeyWide) {
          x0 = fmaf(4.0f, whole(from.high[n][m][0], from.high[n][m][1]), x0);
          x1 = fmaf(4.0f, whole(from.high[n][m][2], from.high[n][m][3]), x1);
        }
        if constexpr (kKeyAffine) {
          const float y0 = fmaf(x0, scale.x, bias.x * q.sum[n][g]), y1 = fmaf(x1, scale.y, bias.y * q.sum[n][g]);
          s[n][2 * m] = g ? s[n][2 * m] + y0 : y0;
          s[n][2 * m + 1] = g ? s[n][2 * m + 1] + y1 : y1;
        } else {
          s[n][2 * m] = x0 * (scale.x * q.scale[n]);
          s[n][2 * m + 1] = x1 * (scale.y * q.scale[n]);
        }
      }
    }
  }

  /// Logits (base 2) of tokens 16 m + g + 8 half, at s[n][2 m + half].
  __device__ static __forceinline__ void scores(const uint8_t* keys, const DecoderOf<K>& decoder, const Query& q, int lane,
                                                float (&s)[NT][8]) {
    constexpr int kGroupSteps = kKeyAffine ? kAffineGroup / 32 : kSteps + 1;
    const uint8_t* const scalars = keys + code_bytes(K, D);
    Scores sums;
    auto& c = sums.c;
    reset(sums, q);
#pragma unroll(kKeyWide ? 1 : kSteps)
    for (int ks = 0; ks < kSteps; ++ks) {
#pragma unroll
      for (int mp = 0; mp < 2; ++mp) {
        uint32_t a[8], high[8];
        decode(decoder, keys + (2 * ks + mp) * kKeyUnit, lane, a, high);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const uint32_t b0 = q.word(n, 2 * ks), b1 = q.word(n, 2 * ks + 1);
          if constexpr (kKeyWide) {
            mma_codes<false, false>(sums.high[n][2 * mp], high, b0, b1);
            mma_codes<false, false>(sums.high[n][2 * mp + 1], high + 4, b0, b1);
          }
          mma_codes<kKeyAffine, false>(c[n][2 * mp], a, b0, b1);
          mma_codes<kKeyAffine, false>(c[n][2 * mp + 1], a + 4, b0, b1);
        }
      }
      if (kKeyAffine && (ks + 1) % kGroupSteps == 0) {
        add_scores(sums, q, scalars, ks / kGroupSteps, lane >> 2, s);
        reset(sums, q);
      }
    }
    if constexpr (D % 32) {
      uint32_t a[8], high[8];
      decode(decoder, keys + 2 * kSteps * kKeyUnit, lane, a, high);
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          mma_codes_half<kKeyAffine>(c[n][m], a + 2 * m, q.word(n, D / 16 - 1));
          if constexpr (kKeyWide) mma_codes_half<false>(sums.high[n][m], high + 2 * m, q.word(n, D / 16 - 1));
        }
    }
    if (!kKeyAffine || kSteps % kGroupSteps || D % 32) add_scores(sums, q, scalars, kKeyGroups - 1, lane >> 2, s);
    if constexpr (kKeyAffine) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 8; ++i) s[n][i] *= q.scale[n];
    }
  }

  /// Soft cap, visibility and mask.
  __device__ static __forceinline__ void filter(float (&s)[NT][8], const AttendView& view, const TilePlace& place, int lane) {
    if (view.p.soft_cap > 0) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int i = 0; i < 8; ++i) s[n][i] = view.capped(s[n][i]);
    }
    if (place.clear()) return;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int vector = view.vector0 + 4 * n + (lane & 3);
      const auto bounds = view.bounds(place.segment, vector);
      const float* const mask = view.mask_row(vector);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        s[n][i] = view.visible(s[n][i], bounds, mask, place.position(codec::kFragmentTokens) + 16 * (i >> 1) + (lane >> 2) + 8 * (i & 1));
    }
  }

  // Two products as bytes to operand B, high parts in columns 2t, low parts in 2t + 1.
  __device__ static __forceinline__ uint32_t signed_bytes(float w0, float w1) {
    const float h0 = w0 + kMagic, h1 = w1 + kMagic;
    const float l0 = fmaf(w0 - (h0 - kMagic), kLowParts, kMagic), l1 = fmaf(w1 - (h1 - kMagic), kLowParts, kMagic);
    const uint32_t high = permute(__float_as_uint(h0), __float_as_uint(h1), 0x0040),
                   low = permute(__float_as_uint(l0), __float_as_uint(l1), 0x0040);
    return transpose8(permute(high, low, 0x5410));
  }
  // kMagic + product in floating point: the product's two bytes are the lowest.
  __device__ static __forceinline__ uint32_t positive_bytes(uint32_t w0, uint32_t w1) { return transpose8(permute(w0, w1, 0x4051)); }

  // Logarithm of the largest product of a weight and a scalar, less kSpan.
  __device__ static __forceinline__ float largest_product(const float (&s)[8], const uint4 (&scales)[kValueGroups]) {
    float most = kHidden;
#pragma unroll
    for (int g = 0; g < kValueGroups; ++g)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        most = fmaxf(most, add_log_low<kValueAffine>(s[2 * m], (&scales[g].x)[m]));
        most = fmaxf(most, add_log_high<kValueAffine>(s[2 * m + 1], (&scales[g].x)[m]));
      }
    return max_over_rows(most) - (kLogShift<kValueAffine> + kSpan - 0.09f);
  }

  /// Logits to operand B of the output product, one set a group of dimensions.
  __device__ static __forceinline__ void weights(const uint8_t* scalars, const float (&s)[NT][8], State& state, int lane, bool force,
                                                 float step2, uint32_t (&b)[NT][kValueGroups][4]) {
    uint4 scales[kValueGroups];
#pragma unroll
    for (int g = 0; g < kValueGroups; ++g) scales[g] = *reinterpret_cast<const uint4*>(scalars + (g * 8 + (lane >> 2)) * 16);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      state.refer(n, largest_product(s[n], scales), force, step2);
      float p[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] = exp2_fast(s[n][i] - state.ref[n]);
      state.part[n] += ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
#pragma unroll
      for (int g = 0; g < kValueGroups; ++g) {
        uint4 biases{};
        if constexpr (kValueAffine) biases = *reinterpret_cast<const uint4*>(scalars + ((kValueGroups + g) * 8 + (lane >> 2)) * 16);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float2 scale = scalar_pair<kValueAffine>((&scales[g].x)[m]);
          if constexpr (kValueAffine) {
            const float2 bias = scalar_pair<true>((&biases.x)[m]);
            state.offset[n][g] = fmaf(p[2 * m], bias.x, fmaf(p[2 * m + 1], bias.y, state.offset[n][g]));
            b[n][g][m] = signed_bytes(p[2 * m] * (scale.x * kSignedProduct), p[2 * m + 1] * (scale.y * kSignedProduct));
          } else {
            const uint32_t w0 = __float_as_uint(fmaf(p[2 * m], scale.x * kPositiveProduct, kMagic));
            const uint32_t w1 = __float_as_uint(fmaf(p[2 * m + 1], scale.y * kPositiveProduct, kMagic));
            state.products[n] += w0 + w1 - 2u * kMagicBits;
            b[n][g][m] = positive_bytes(w0, w1);
          }
        }
      }
    }
  }

  __device__ static __forceinline__ void outputs(const uint8_t* values, const DecoderOf<V>& decoder,
                                                 const uint32_t (&b)[NT][kValueGroups][4], int lane, State& state) {
#pragma unroll
    for (int md = 0; md < kUnits; ++md) {
      const int g = kValueGroups == 1 ? 0 : md * 16 / kAffineGroup;
      uint32_t a[8], high[8];
      decode(decoder, values + md * kValueUnit, lane, a, high);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        mma_codes<kValueAffine, !kValueAffine>(state.sums[n][md], a, b[n][g][0], b[n][g][1]);
        mma_codes<kValueAffine, !kValueAffine>(state.sums[n][md], a + 4, b[n][g][2], b[n][g][3]);
        if constexpr (kValueWide) {
          int sums[4] = {0, 0, 0, 0};
          mma_codes<false, true>(sums, high, b[n][g][0], b[n][g][1]);
          mma_codes<false, true>(sums, high + 4, b[n][g][2], b[n][g][3]);
#pragma unroll
          for (int i = 0; i < 4; ++i) state.sums[n][md][i] += 4 * sums[i];
        }
      }
    }
  }
};

/// A tile of 16 tokens in 16-bit numbers. `queries`: [8 NT columns][D + 8] numbers of that type, hi and lo of vector t in columns 2t and 2t
/// + 1.
template <int D, int NT, Code V>
struct FullTile {
  using State = AttendState<D, NT, V>;

  __device__ static __forceinline__ void product(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1, bool half) {
    if (half)
      mma_f16(c, a, b0, b1);
    else
      mma_bf16(c, a, b0, b1);
  }
  __device__ static __forceinline__ uint32_t split(float x, bool half) {
    if (half) {
      const __half high = __float2half_rn(x);
      const __half2 both = __halves2half2(high, __float2half_rn(x - __half2float(high)));
      return *reinterpret_cast<const uint32_t*>(&both);
    }
    const __nv_bfloat16 high = __float2bfloat16_rn(x);
    const __nv_bfloat162 both = __halves2bfloat162(high, __float2bfloat16_rn(x - __bfloat162float(high)));
    return *reinterpret_cast<const uint32_t*>(&both);
  }

  __device__ static __forceinline__ void scores(const uint8_t* keys, const uint16_t* queries, int n, float scale, int lane, bool half,
                                                float (&s)[2]) {
    float c[4] = {0, 0, 0, 0};
    const uint32_t* row = reinterpret_cast<const uint32_t*>(queries + (8 * n + (lane >> 2)) * (D + 8)) + (lane & 3);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      product(c, *reinterpret_cast<const uint4*>(keys + (k * 32 + lane) * 16), row[8 * k], row[8 * k + 4], half);
    s[0] = (c[0] + c[1]) * scale, s[1] = (c[2] + c[3]) * scale;
  }

  __device__ static __forceinline__ void filter(float (&s)[2], const AttendView& view, const TilePlace& place, int n, int lane) {
    if (view.p.soft_cap > 0) s[0] = view.capped(s[0]), s[1] = view.capped(s[1]);
    if (place.clear()) return;
    const int vector = view.vector0 + 4 * n + (lane & 3), position = place.position(codec::kFragmentFullTokens) + (lane >> 2);
    const auto bounds = view.bounds(place.segment, vector);
    const float* const mask = view.mask_row(vector);
    s[0] = view.visible(s[0], bounds, mask, position);
    s[1] = view.visible(s[1], bounds, mask, position + 8);
  }

  /// Adds the weighted values of one set of vectors, relative to the tile's own maximum.
  __device__ static __forceinline__ void outputs(const uint8_t* values, const float (&s)[2], State& state, int n, int lane, bool half) {
    const float most = fmaxf(max_over_rows(fmaxf(s[0], s[1])), kNothing);
    const float shrink = state.raise_top(n, most), weight = exp2_fast(most - state.top[n]);
    const float p0 = exp2_fast(s[0] - most), p1 = exp2_fast(s[1] - most);
    state.total[n] = fmaf(p0 + p1, weight, state.total[n]);
    const uint32_t b0 = transpose8(split(p0, half)), b1 = transpose8(split(p1, half));
#pragma unroll
    for (int b = 0; b < D / 16; ++b) {
      float c[4] = {0, 0, 0, 0};
      product(c, *reinterpret_cast<const uint4*>(values + (b * 32 + lane) * 16), b0, b1, half);
      state.out[n][b][0] = fmaf(state.out[n][b][0], shrink, (c[0] + c[1]) * weight);
      state.out[n][b][1] = fmaf(state.out[n][b][1], shrink, (c[2] + c[3]) * weight);
    }
  }
};

}  // namespace tersor::kernels::cuda
