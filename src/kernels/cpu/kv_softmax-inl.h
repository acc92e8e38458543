// Online softmax of rows of 64 scores. Scores are in units of log 2: weights are powers of two.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_SOFTMAX_INL_H_
#undef TERSOR_KERNELS_CPU_KV_SOFTMAX_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/layout.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_attend.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace softmax {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::VF;

constexpr int kTile = codec::kTileTokens;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;

// 2^r for r within [0, 1): relative error below 2e-7.
HWY_INLINE VF Fraction(VF r) {
  const F d;
  auto y = hn::Set(d, 0.00187757665f);
  y = hn::MulAdd(y, r, hn::Set(d, 0.00898934016f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.0558263180f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.240153617f));
  y = hn::MulAdd(y, r, hn::Set(d, 0.693153073f));
  return hn::MulAdd(y, r, hn::Set(d, 0.999999925f));
}

// 2^x for x <= 0; 0 for -infinity, NaN for NaN.
HWY_INLINE VF Exp2(VF x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // x - floor(x), which is 0 for infinities, and y * 2^floor(x).
  return VF{_mm512_scalef_ps(Fraction(VF{_mm512_reduce_ps(x.raw, 0x01)}).raw, x.raw)};
#else
  const F d;
  const hn::RebindToSigned<F> di;
  const auto least = hn::Set(d, -126.0f);
  const auto low = hn::Lt(x, least);
  const auto bounded = hn::IfThenElse(low, least, x);  // keeps NaN, which Max loses on some targets
  const auto whole = hn::Floor(bounded);
  const auto y = Fraction(hn::Sub(bounded, whole));
  const auto power = hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::NearestInt(whole))));
  return hn::IfThenZeroElse(low, power);
#endif
}

inline void ScaleRow(float* row, float factor, size_t n) {
  const F d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
}

// cap * tanh(scores / cap), in units of log 2.
inline void SoftCap(float* row, float cap) {
  const F d;
  const auto top = hn::Set(d, cap * kLog2E), inverse = hn::Set(d, 1 / cap);
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(top, hn::Tanh(d, hn::Mul(hn::LoadU(d, row + i), inverse))), d, row + i);
}

// What the mask adds to a score.
inline float MaskValue(const KvAttend& p, int64_t at) {
  switch (p.mask_kind) {
    case MaskKind::none: return 0;
    case MaskKind::boolean: return static_cast<const bool*>(p.mask)[at] ? 0 : kMinusInfinity;
    case MaskKind::f16: return half_to_float(static_cast<const uint16_t*>(p.mask)[at]);
    case MaskKind::bf16: return bfloat_to_float(static_cast<const uint16_t*>(p.mask)[at]);
    case MaskKind::f32: return static_cast<const float*>(p.mask)[at];
  }
  return 0;
}

// Adds the mask to scores [lo, hi) of one row; `token` is the position of score 0. Minus infinity hides a score, even NaN.
inline void ApplyMask(const KvAttend& p, float* row, int64_t batch, int64_t head, int64_t query, int64_t token, int64_t lo, int64_t hi) {
  const int64_t base = batch * p.mask_strides[0] + head * p.mask_strides[1] + query * p.mask_strides[2];
  for (int64_t i = lo; i < hi; ++i) {
    const float value = MaskValue(p, base + (token + i) * p.mask_strides[3]);
    row[i] = value == kMinusInfinity ? value : row[i] + value * kLog2E;
  }
}

// The running softmax of one row: outputs and sums are relative to 2^maximum.
struct Running {
  float& maximum;
  float* lane_sums;  // [16]
  float* output;
  size_t value_dim;
};

// Makes the greatest of the scores the running maximum. NaN among them stays NaN.
HWY_NOINLINE inline void RaiseMaximum(const float* row, const Running& state) {
  const F d;
  auto most = hn::Set(d, kMinusInfinity), nan = hn::Zero(d);  // nan: 0 or NaN
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d))) {
    const auto x = hn::LoadU(d, row + i);
    const auto is_number = hn::Eq(x, x);
    most = hn::Max(most, hn::IfThenElse(is_number, x, most));
    nan = hn::Add(nan, hn::IfThenZeroElse(is_number, x));
  }
  const float top = hn::GetLane(hn::MaxOfLanes(d, most)) + hn::GetLane(hn::SumOfLanes(d, nan));
  const float shrink = state.maximum == kMinusInfinity ? 0.0f : std::exp2(state.maximum - top);
  state.maximum = top;
  ScaleRow(state.lane_sums, shrink, codec::kLanes);
  ScaleRow(state.output, shrink, state.value_dim);
}

// Scores, of which [lo, hi) count, become weights relative to the running maximum.
HWY_INLINE void SoftmaxRow(float* HWY_RESTRICT row, int64_t lo, int64_t hi, const Running& state) {
  const F d;
  if (lo > 0) std::fill(row, row + lo, kMinusInfinity);
  if (hi < kTile) std::fill(row + hi, row + kTile, kMinusInfinity);
  auto within = hn::Le(hn::LoadU(d, row), hn::Set(d, state.maximum));
#pragma GCC unroll 4
  for (int i = static_cast<int>(hn::Lanes(d)); i < kTile; i += static_cast<int>(hn::Lanes(d)))
    within = hn::And(within, hn::Le(hn::LoadU(d, row + i), hn::Set(d, state.maximum)));
  if (!hn::AllTrue(d, within)) RaiseMaximum(row, state);
  if (HWY_UNLIKELY(state.maximum == kMinusInfinity)) {  // nothing visible yet: no change, and no 2^(-inf + inf)
    std::fill(row, row + kTile, 0.0f);
    return;
  }
  const auto maximum = hn::Set(d, state.maximum);
  auto total = hn::LoadU(d, state.lane_sums);
#pragma GCC unroll 4
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(d))) {
    const auto weight = Exp2(hn::Sub(hn::LoadU(d, row + i), maximum));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, row + i);
  }
  hn::StoreU(total, d, state.lane_sums);
}

}  // namespace softmax
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
