#include "kernels/cpu/norm_rope.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_rope.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/float_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace norm {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;

template <Dtype kType>
HWY_INLINE float SumOfSquares(const void* x, size_t at, size_t n) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0;
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = LoadAsFloat<kType>(d, x, at + i), b = LoadAsFloat<kType>(d, x, at + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) {
    const float v = convert::LoadOne<kType>(x, at + i);
    sum += v * v;
  }
  return sum;
}

// out[i] = x[at + i] * factor * weight[i], from kType to kOut.
template <Dtype kType, Dtype kWeight, Dtype kOut>
HWY_INLINE void ScaleRow(const void* x, size_t at, float factor, const void* weight, void* out, size_t out_at, size_t n) {
  const DF d;
  const auto f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto v = hn::Mul(hn::Mul(LoadAsFloat<kType>(d, x, at + i), f), LoadAsFloat<kWeight>(d, weight, i));
    StoreFromFloat<kOut>(d, v, out, out_at + i);
  }
  for (; i < n; ++i)
    convert::StoreOne<kOut>(convert::LoadOne<kType>(x, at + i) * factor * convert::LoadOne<kWeight>(weight, i), out, out_at + i);
}

template <Dtype kType, Dtype kWeight, Dtype kOut>
void NormRows(const void* x, const void* weight, float eps, void* out, size_t rows, size_t n) {
  for (size_t r = 0; r < rows; ++r) {
    const float mean = SumOfSquares<kType>(x, r * n, n) / static_cast<float>(n);
    ScaleRow<kType, kWeight, kOut>(x, r * n, 1.0f / std::sqrt(mean + eps), weight, out, r * n, n);
  }
}

template <Dtype kType, Dtype kOut>
void NormRowsOf(const void* x, Dtype weight_type, const void* weight, float eps, void* out, size_t rows, size_t n) {
  switch (weight_type) {
    case Dtype::f32: return NormRows<kType, Dtype::f32, kOut>(x, weight, eps, out, rows, n);
    case Dtype::f16: return NormRows<kType, Dtype::f16, kOut>(x, weight, eps, out, rows, n);
    case Dtype::bf16: return NormRows<kType, Dtype::bf16, kOut>(x, weight, eps, out, rows, n);
  }
}

// One head of floats or kFrom numbers turned into kOut numbers.
template <Dtype kFrom, Dtype kOut>
HWY_INLINE void TurnHead(const void* x, size_t at, const float* cos_sin, size_t pairs, size_t head_dim, void* out, size_t out_at) {
  const DF d;
  const float *cosines = cos_sin, *sines = cos_sin + pairs;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= pairs; i += hn::Lanes(d)) {
    const auto a = LoadAsFloat<kFrom>(d, x, at + i), b = LoadAsFloat<kFrom>(d, x, at + pairs + i);
    const auto c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    StoreFromFloat<kOut>(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), out, out_at + i);
    StoreFromFloat<kOut>(d, hn::MulAdd(a, s, hn::Mul(b, c)), out, out_at + pairs + i);
  }
  for (; i < pairs; ++i) {
    const float a = convert::LoadOne<kFrom>(x, at + i), b = convert::LoadOne<kFrom>(x, at + pairs + i);
    convert::StoreOne<kOut>(a * cosines[i] - b * sines[i], out, out_at + i);
    convert::StoreOne<kOut>(a * sines[i] + b * cosines[i], out, out_at + pairs + i);
  }
  for (i = 2 * pairs; i < head_dim; ++i) convert::StoreOne<kOut>(convert::LoadOne<kFrom>(x, at + i), out, out_at + i);
}

// angles becomes its cosine times scale, sines the sine times scale.
HWY_INLINE void CosSin(float* angles, float* sines, size_t n, float scale) {
  const DF d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto angle = hn::LoadU(d, angles + i), s = hn::Set(d, scale);
    hn::StoreU(hn::Mul(hn::Sin(d, angle), s), d, sines + i);
    hn::StoreU(hn::Mul(hn::Cos(d, angle), s), d, angles + i);
  }
  for (; i < n; ++i) {
    const float angle = angles[i];
    sines[i] = std::sin(angle) * scale;
    angles[i] = std::cos(angle) * scale;
  }
}

template <Dtype kType>
void TurnToken(const RopeHeads& p, const void* x, const float* cos_sin, void* out, size_t heads, float* scratch) {
  for (size_t h = 0; h < heads; ++h) {
    const size_t at = h * p.head_dim;
    if (!p.norm) {
      TurnHead<kType, kType>(x, at, cos_sin, p.pairs, p.head_dim, out, at);
      continue;
    }
    const char* head = static_cast<const char*>(x) + at * size_of(kType);
    NormRowsOf<kType, Dtype::f32>(head, p.norm_type, p.norm, p.eps, scratch, 1, p.head_dim);
    TurnHead<Dtype::f32, kType>(scratch, 0, cos_sin, p.pairs, p.head_dim, out, at);
  }
}
}  // namespace norm

void RmsNormRows(Dtype type, const void* x, Dtype weight_type, const void* weight, float eps, void* out, size_t rows, size_t n) {
  switch (type) {
    case Dtype::f32: return norm::NormRowsOf<Dtype::f32, Dtype::f32>(x, weight_type, weight, eps, out, rows, n);
    case Dtype::f16: return norm::NormRowsOf<Dtype::f16, Dtype::f16>(x, weight_type, weight, eps, out, rows, n);
    case Dtype::bf16: return norm::NormRowsOf<Dtype::bf16, Dtype::bf16>(x, weight_type, weight, eps, out, rows, n);
  }
}

void RopeTable(const float* inv_freq, size_t pairs, int64_t position, size_t tokens, float scale, float* table) {
  constexpr double kTurn = 2 * 3.14159265358979323846;
  for (size_t t = 0; t < tokens; ++t, table += 2 * pairs) {
    const double p = static_cast<double>(position + static_cast<int64_t>(t));
    for (size_t i = 0; i < pairs; ++i) {  // to [-pi, pi] in double, where a float's error no longer grows with the position
      const double angle = p * static_cast<double>(inv_freq[i]), turns = angle * (1 / kTurn);
      const double whole = static_cast<double>(static_cast<int64_t>(turns + (turns < 0 ? -0.5 : 0.5)));
      table[i] = static_cast<float>(angle - whole * kTurn);
    }
    norm::CosSin(table, table + pairs, pairs, scale);
  }
}

void RopeToken(const RopeHeads& params, const void* x, const float* cos_sin, void* out, size_t heads, float* scratch) {
  switch (params.type) {
    case Dtype::f32: return norm::TurnToken<Dtype::f32>(params, x, cos_sin, out, heads, scratch);
    case Dtype::f16: return norm::TurnToken<Dtype::f16>(params, x, cos_sin, out, heads, scratch);
    case Dtype::bf16: return norm::TurnToken<Dtype::bf16>(params, x, cos_sin, out, heads, scratch);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(RopeTable);
HWY_EXPORT(RopeToken);

void rms_norm_rows(Dtype type, const void* x, Dtype weight_type, const void* weight, float eps, void* out, size_t rows, size_t n) {
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(type, x, weight_type, weight, eps, out, rows, n);
}

void rope_table(const float* inv_freq, size_t pairs, int64_t position, size_t tokens, float scale, float* table) {
  HWY_DYNAMIC_DISPATCH(RopeTable)(inv_freq, pairs, position, tokens, scale, table);
}

void rope_token(const RopeHeads& params, const void* x, const float* cos_sin, void* out, size_t heads, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RopeToken)(params, x, cos_sin, out, heads, scratch);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
