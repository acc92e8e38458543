// What follows a linear layer's sums: bias, residual, gated activation, and the output's type.
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_finish.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/float_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace finish {
namespace hn = hwy::HWY_NAMESPACE;

// v / (1 + e^-v). The exponent is held where the exponential is finite; beyond, the result is 0 or v to float precision.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V v) {
  const V exponent = hn::Max(hn::Min(hn::Neg(v), hn::Set(d, 88.0f)), hn::Set(d, -88.0f));
  return hn::Div(v, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

template <Dtype kType>
void AddBias(float* sums, size_t lds, size_t rows, size_t n, const void* bias) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto b = LoadAsFloat<kType>(d, bias, i);
    for (size_t r = 0; r < rows; ++r) hn::StoreU(hn::Add(hn::LoadU(d, sums + r * lds + i), b), d, sums + r * lds + i);
  }
  for (; i < n; ++i) {
    const float b = convert::LoadOne<kType>(bias, i);
    for (size_t r = 0; r < rows; ++r) sums[r * lds + i] += b;
  }
}

template <Dtype kType>
void FinishSum(const float* sums, const void* residual, void* out, size_t n) {
  if (!residual) return RowFromFloat<kType>(sums, out, n);
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    StoreFromFloat<kType>(d, hn::Add(hn::LoadU(d, sums + i), LoadAsFloat<kType>(d, residual, i)), out, i);
  for (; i < n; ++i) convert::StoreOne<kType>(sums[i] + convert::LoadOne<kType>(residual, i), out, i);
}

template <Dtype kType>
void FinishSwiglu(const float* gate, const float* up, void* out, size_t n) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    StoreFromFloat<kType>(d, hn::Mul(Silu(d, hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), out, i);
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) convert::StoreOne<kType>(hn::GetLane(Silu(one, hn::Set(one, gate[i]))) * up[i], out, i);
}
}  // namespace finish

void AddBiasRows(float* sums, size_t lds, size_t rows, size_t n, Dtype type, const void* bias) {
  switch (type) {
    case Dtype::f32: return finish::AddBias<Dtype::f32>(sums, lds, rows, n, bias);
    case Dtype::f16: return finish::AddBias<Dtype::f16>(sums, lds, rows, n, bias);
    case Dtype::bf16: return finish::AddBias<Dtype::bf16>(sums, lds, rows, n, bias);
  }
}

void FinishSumRow(Dtype type, const float* sums, const void* residual, void* out, size_t n) {
  switch (type) {
    case Dtype::f32: return finish::FinishSum<Dtype::f32>(sums, residual, out, n);
    case Dtype::f16: return finish::FinishSum<Dtype::f16>(sums, residual, out, n);
    case Dtype::bf16: return finish::FinishSum<Dtype::bf16>(sums, residual, out, n);
  }
}

void FinishSwigluRow(Dtype type, const float* gate, const float* up, void* out, size_t n) {
  switch (type) {
    case Dtype::f32: return finish::FinishSwiglu<Dtype::f32>(gate, up, out, n);
    case Dtype::f16: return finish::FinishSwiglu<Dtype::f16>(gate, up, out, n);
    case Dtype::bf16: return finish::FinishSwiglu<Dtype::bf16>(gate, up, out, n);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(AddBiasRows);
HWY_EXPORT(FinishSumRow);
HWY_EXPORT(FinishSwigluRow);

void add_bias(float* sums, size_t lds, size_t rows, size_t n, Dtype type, const void* bias) {
  HWY_DYNAMIC_DISPATCH(AddBiasRows)(sums, lds, rows, n, type, bias);
}
void finish_sum(Dtype type, const float* sums, const void* residual, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(FinishSumRow)(type, sums, residual, out, n);
}
void finish_swiglu(Dtype type, const float* gate, const float* up, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(FinishSwigluRow)(type, gate, up, out, n);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
