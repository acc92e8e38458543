// Queries, running softmax and outputs of the prefill kernel: a warp has 16 query vectors, lane 4 g + t rows g and g + 8.
#pragma once

#include <type_traits>

#include "kernels/cuda/kv_attend_merge.cuh"
#include "kernels/cuda/kv_prefill_shape.cuh"
#include "kernels/cuda/kv_rotate_many.cuh"

namespace tersor::kernels::cuda {

/// What values over codes are multiplied with in the end, besides their power of two.
__device__ __forceinline__ float value_factor(const AttendParams& p) { return p.value_levels.step > 0 ? 2 * p.value_levels.step : 1.0f; }

/// Row and head within the group of a query vector.
struct VectorPlace {
  int group, row, head;
  __device__ __forceinline__ VectorPlace(const AttendParams& p, int vector)
      : group(p.group), row(vector / p.group), head(vector - row * group) {}
  __device__ __forceinline__ void advance() {
    if (++head == group) head = 0, ++row;
  }
};

/// The warp's queries as operands, relative to a power of two a row.
template <class S>
struct PrefillQueries {
  static constexpr int D = S::D;
  static constexpr float kTop = 0x1p11f;  // largest number of a row, at least half of it
  AttendView view;                        // vector 0 is the warp's first
  uint8_t* own;                           // of shared memory: rows of numbers
  float* scratch;
  int lane;
  uint32_t words[D / 16][4];
  float scale[2];  // of scores, logarithm base 2 included

  __device__ __forceinline__ PrefillQueries(const AttendView& v, uint8_t* memory, int warp, int l)
      : view(v),
        own(memory + S::kQueries + warp * 16 * S::kQueryRow * 2),
        scratch(reinterpret_cast<float*>(memory + S::kScratch) + warp * D),
        lane(l) {
    constexpr int kAtOnce = 8;
    const AttendParams& p = view.p;
    const int g = lane >> 2;
#pragma unroll 1
    for (int r0 = 0; r0 < 16; r0 += kAtOnce) {
      float x[kAtOnce][WarpVector<D>::kEach] = {};
      VectorPlace at(p, view.vector0 + r0);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, at.advance())
        if (at.row < p.rows) load_vector<D>(row_of(p.queries, view.batch, view.kv_head * p.group + at.head, at.row), p.queries, lane, x[i]);
      rotate_many<D, kAtOnce, false>(x, p.key_rotation, lane, scratch);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float unit = stage(x[i], r0 + i);
        if (i == g) (r0 ? scale[1] : scale[0]) = unit;
      }
    }
    __syncwarp();
    const auto* rows = reinterpret_cast<const typename S::T*>(own);
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        words[i][k] =
            *reinterpret_cast<const uint32_t*>(rows + (g + 8 * (k & 1)) * S::kQueryRow + dimension(2 * i + (k >> 1), 2 * (lane & 3)));
    __syncwarp();
#pragma unroll
    for (float& s : scale) s *= p.scale * 1.44269504f;
  }

 private:
  // Dimension at an even place of a chunk (kv_prefill_shape.cuh).
  __device__ static __forceinline__ int dimension(int chunk, int place) {
    constexpr int kSteps = D / 32;
    const int step = chunk >> 2, t = chunk & 3;
    if constexpr (S::kCoded) return step == kSteps ? 8 * chunk + place : 32 * step + 4 * t + (place & 3) + 16 * (place >> 2);
    const int inner = 8 * (place >> 1 & 1);
    return step == kSteps ? 32 * kSteps + 2 * (2 * t + (place >> 2)) + inner : 32 * step + 16 * (place >> 2) + inner + 2 * t;
  }
  // Writes a row; returns its unit.
  __device__ __forceinline__ float stage(const float (&x)[WarpVector<D>::kEach], int row) {
    using W = WarpVector<D>;
    float most = 0x1p-100f;
#pragma unroll
    for (const float v : x) most = fmaxf(most, fabsf(v));
    const int exponent = static_cast<int>(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23) - 127;
    const float factor = power_of_two(min(-exponent, 126)) * (kTop / 2);
    auto* const to = reinterpret_cast<typename S::T*>(own) + row * S::kQueryRow;
#pragma unroll
    for (int j = 0; j < W::kEach; ++j)
      if (W::inside(lane, j)) {
        if constexpr (std::is_same_v<typename S::T, __half>)
          to[W::index(lane, j)] = __float2half_rn(x[j] * factor);
        else
          to[W::index(lane, j)] = __float2bfloat16_rn(x[j] * factor);
      }
    return power_of_two(max(exponent, -126)) * (2 / kTop);
  }
};

template <class S>
struct PrefillSoftmax {
  static constexpr int D = S::D;
  static constexpr float kBelow = 6, kRoom = 8;  // weights are 2^kBelow at the maximum, and may exceed that by 2^kRoom before `ref` moves
  float out[D / 2];                              // [block of 8 dimensions][row][2]
  float ref[2], total[2], shrink[2];
  bool moved = false;
  uint32_t exponents = 0xff81ff81u;  // -127 twice

  __device__ __forceinline__ explicit PrefillSoftmax(const PrefillQueries<S>&) {
#pragma unroll
    for (float& x : out) x = 0;
    ref[0] = ref[1] = kNothing, total[0] = total[1] = 0;
  }

  /// Scores to weights, and their sums; outputs are to be rescaled afterwards.
  __device__ __forceinline__ void weigh(const AttendParams& p, const TileWalk& walk, const float (&key_scale)[2],
                                        const PrefillQueries<S>& q, float (&s)[32]) {
    float c[2][2];  // [row][half of the tokens]
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i >> 1][i & 1] = q.scale[i >> 1] * key_scale[i & 1];
    if (!walk.clear()) filter(p, walk, q, c, s);
    // Of this lane alone: the row's maximum is only needed when one of its four lanes has come too far above `ref`.
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m[2][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) m[h][i] = fmaxf(s[16 * h + 2 * r + i], s[16 * h + 4 + 2 * r + i]);
#pragma unroll
        for (int i = 0; i < 2; ++i) m[h][i] = fmaxf(m[h][i], fmaxf(s[16 * h + 8 + 2 * r + i], s[16 * h + 12 + 2 * r + i]));
      }
      most[r] = fmaxf(fmaxf(m[0][0], m[0][1]) * c[r][0], fmaxf(m[1][0], m[1][1]) * c[r][1]);
    }
    moved = __any_sync(~0u, most[0] > ref[0] + (kBelow + kRoom) || most[1] > ref[1] + (kBelow + kRoom));
    if (moved) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = fmaxf(most[r], xor_shuffle(most[r], 1));
        most[r] = fmaxf(most[r], xor_shuffle(most[r], 2));
        const float to = fmaxf(ref[r], most[r] - kBelow);
        shrink[r] = exp2_fast(ref[r] - to), ref[r] = to, total[r] *= shrink[r];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum[2] = {0, 0};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[16 * h + 4 * (i >> 1) + 2 * r + (i & 1)];
          x = exp2_fast(fmaf(x, c[r][h], -ref[r]));
          sum[i & 1] += x;
        }
      total[r] += sum[0] + sum[1];
    }
  }
  __device__ __forceinline__ void rescale() {
    if (!moved) return;
#pragma unroll
    for (int b = 0; b < D / 8; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * b + i] *= shrink[i >> 1];
  }
  __device__ __forceinline__ static int exponent(uint32_t pair, int which) {
    return static_cast<int16_t>(which ? pair >> 16 : pair & 0xffffu);
  }
  /// Outputs are relative to the values' powers of two, of even and of odd blocks of 16 dimensions.
  __device__ __forceinline__ void follow_exponent(uint32_t to) {
    if (to == exponents) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float factor = power_of_two(min(max(exponent(exponents, k) - exponent(to, k), -126), 127));
#pragma unroll
      for (int b = 2 * k; b < D / 8; b += 4)
#pragma unroll
        for (int i = 0; i < 8; ++i) out[4 * b + i] *= factor;
    }
    exponents = to;
  }
  /// Weights to the outputs' first operand.
  __device__ __forceinline__ void pack(const float (&s)[32], uint32_t (&weights)[4][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float x = s[8 * i + 4 * (k >> 1) + 2 * (k & 1)], y = s[8 * i + 4 * (k >> 1) + 2 * (k & 1) + 1];
        if constexpr (std::is_same_v<typename S::T, __half>) {
          const __half2 pair = __floats2half2_rn(x, y);
          weights[i][k] = *reinterpret_cast<const uint32_t*>(&pair);
        } else {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
          weights[i][k] = *reinterpret_cast<const uint32_t*>(&pair);
        }
      }
  }
  /// Normalises, turns back and stores the warp's rows, eight at a time through shared memory.
  __device__ __forceinline__ void write(const AttendParams& p, PrefillQueries<S>& q) {
    const int lane = q.lane, g = lane >> 2, t = lane & 3;
    constexpr int kRow = S::kQueryRow;  // floats: eight rows take what sixteen of 16-bit numbers did
    auto* const rows = reinterpret_cast<float*>(q.own);
    const float factor = S::kCoded ? value_factor(p) : 1.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r];
      sum += xor_shuffle(sum, 1);
      sum += xor_shuffle(sum, 2);
      const int vector = q.view.vector0 + g + 8 * r;
      const float scale = normaliser(q.view, vector, ref[r], sum) * factor;
#pragma unroll
      for (int b = 0; b < D / 8; ++b) {
        const float x = S::kCoded ? scale * power_of_two(max(exponent(exponents, b >> 1 & 1), -126)) : scale;
        *reinterpret_cast<float2*>(rows + g * kRow + 8 * b + 2 * t) = {out[4 * b + 2 * r] * x, out[4 * b + 2 * r + 1] * x};
      }
      __syncwarp();
      write_rows(p, q, rows, q.view.vector0 + 8 * r);
      __syncwarp();
    }
  }

 private:
  // Logits instead of scores: soft cap, visibility, mask.
  __device__ __forceinline__ void filter(const AttendParams& p, const TileWalk& walk, const PrefillQueries<S>& q, float (&c)[2][2],
                                         float (&s)[32]) const {
    const int lane = q.lane, position = walk.position() + 8 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int vector = q.view.vector0 + (lane >> 2) + 8 * r;
      const auto bounds = q.view.bounds(walk.segment(), vector);
      const float* const mask = q.view.mask_row(vector);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[16 * h + 4 * (i >> 1) + 2 * r + (i & 1)];
          x *= c[r][h];
          if (p.soft_cap > 0) x = q.view.capped(x);
          x = q.view.visible(x, bounds, mask, position + 32 * h + i);
        }
        c[r][h] = 1;
      }
    }
  }
  // Eight rows from shared memory to their places.
  __device__ __forceinline__ void write_rows(const AttendParams& p, const PrefillQueries<S>& q, const float* rows, int vector0) const {
    using W = WarpVector<D>;
    float v[8][W::kEach];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < W::kEach; ++j) v[i][j] = W::inside(q.lane, j) ? rows[i * S::kQueryRow + W::index(q.lane, j)] : 0.0f;
    rotate_many<D, 8, true>(v, p.value_rotation, q.lane, q.scratch);
    VectorPlace at(p, vector0);
#pragma unroll
    for (int i = 0; i < 8; ++i, at.advance())
      if (at.row < p.rows) write_row(p, q, v[i], at);
  }
  __device__ __forceinline__ void write_row(const AttendParams& p, const PrefillQueries<S>& q, const float (&v)[WarpVector<D>::kEach],
                                            const VectorPlace& place) const {
    using W = WarpVector<D>;
    const long long at =
        q.view.batch * p.out_batch_stride + (q.view.kv_head * p.group + place.head) * p.out_head_stride + place.row * p.out_token_stride;
    if constexpr (W::kPower && W::kEach == 4) {
      if (p.queries.type != Number::f32 && (at & 3) == 0) {
        const bool half = p.queries.type == Number::f16;
        uint2 words;
        words.x = half ? pair_bits(__floats2half2_rn(v[0], v[1])) : pair_bits(__floats2bfloat162_rn(v[0], v[1]));
        words.y = half ? pair_bits(__floats2half2_rn(v[2], v[3])) : pair_bits(__floats2bfloat162_rn(v[2], v[3]));
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.out) + at + 4 * q.lane) = words;
        return;
      }
    }
#pragma unroll
    for (int j = 0; j < W::kEach; ++j)
      if (W::inside(q.lane, j)) store_number(p.out, p.queries.type, at + W::index(q.lane, j), v[j]);
  }
  template <class Pair>
  __device__ static __forceinline__ uint32_t pair_bits(const Pair& x) {
    return *reinterpret_cast<const uint32_t*>(&x);
  }
};

}  // namespace tersor::kernels::cuda
