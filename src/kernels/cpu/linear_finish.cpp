// What follows a linear layer's sums: bias, residual, gated activation, and the output's type.
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_finish.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/float_convert-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_FINISH_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_FINISH_ONCE_
namespace tersor::kernels {
// Phi(-v) * e^(v^2 / 2) for v >= 0: t * (kTail[0] + kTail[1] * t + ...), t = 1 / (1 + 0.35 v).
constexpr size_t kTailTerms = 9;
constexpr float kTail[kTailTerms] = {0.139621402f, 0.139861924f, 0.119832419f, 0.105509957f,  -0.0231148172f,
                                     0.15918185f,  -0.25572132f, 0.143975252f, -0.0291466839f};
}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace finish {
namespace hn = hwy::HWY_NAMESPACE;

// v / (1 + e^-at). The exponent is held where the exponential is finite; beyond, the result is 0 or v to float precision.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Logistic(D d, V v, V at) {
  const V exponent = hn::Max(hn::Min(hn::Neg(at), hn::Set(d, 88.0f)), hn::Set(d, -88.0f));
  return hn::Div(v, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

template <Activation kActivation>
struct Activate;

template <>
struct Activate<Activation::silu> {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V v) const {
    return Logistic(d, v, v);
  }
};

// v / 2 * (1 + tanh(u)) = v / (1 + e^-2u) with u = sqrt(2 / pi) * (v + 0.044715 v^3).
template <>
struct Activate<Activation::gelu_tanh> {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V v) const {
    const V slope = hn::MulAdd(hn::Mul(v, v), hn::Set(d, 0.0713548163f), hn::Set(d, 1.5957691216f));  // 2u / v
    return Logistic(d, v, hn::Mul(v, slope));
  }
};

// v * Phi(v). Phi(-|v|) = e^(-v^2 / 2) * tail(|v|), and the tail is a polynomial in 1 / (1 + 0.35 |v|), fitted for the least relative
// error (3e-8 up to |v| = 14, beyond which Phi is below any float).
template <>
struct Activate<Activation::gelu> {
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V v) const {
    const V size = hn::Min(hn::Abs(v), hn::Set(d, 14.0f)), one = hn::Set(d, 1.0f);
    const V t = hn::Div(one, hn::MulAdd(size, hn::Set(d, 0.35f), one));
    V tail = hn::Set(d, kTail[kTailTerms - 1]);
    for (size_t i = kTailTerms - 1; i-- > 0;) tail = hn::MulAdd(tail, t, hn::Set(d, kTail[i]));
    const V gauss = hn::Exp(d, hn::Mul(hn::Mul(size, size), hn::Set(d, -0.5f)));
    const V low = hn::Mul(hn::Mul(tail, t), gauss);
    return hn::Mul(v, hn::IfThenElse(hn::Lt(v, hn::Zero(d)), low, hn::Sub(one, low)));
  }
};

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

template <Dtype kType, Activation kActivation>
void FinishGated(const float* gate, const float* up, void* out, size_t n) {
  const hn::ScalableTag<float> d;
  const Activate<kActivation> activate;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    StoreFromFloat<kType>(d, hn::Mul(activate(d, hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), out, i);
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) convert::StoreOne<kType>(hn::GetLane(activate(one, hn::Set(one, gate[i]))) * up[i], out, i);
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

template <Activation kActivation>
void FinishGatedAs(Dtype type, const float* gate, const float* up, void* out, size_t n) {
  switch (type) {
    case Dtype::f32: return finish::FinishGated<Dtype::f32, kActivation>(gate, up, out, n);
    case Dtype::f16: return finish::FinishGated<Dtype::f16, kActivation>(gate, up, out, n);
    case Dtype::bf16: return finish::FinishGated<Dtype::bf16, kActivation>(gate, up, out, n);
  }
}

void FinishGatedRow(Dtype type, Activation activation, const float* gate, const float* up, void* out, size_t n) {
  switch (activation) {
    case Activation::silu: return FinishGatedAs<Activation::silu>(type, gate, up, out, n);
    case Activation::gelu: return FinishGatedAs<Activation::gelu>(type, gate, up, out, n);
    case Activation::gelu_tanh: return FinishGatedAs<Activation::gelu_tanh>(type, gate, up, out, n);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(AddBiasRows);
HWY_EXPORT(FinishSumRow);
HWY_EXPORT(FinishGatedRow);

void add_bias(float* sums, size_t lds, size_t rows, size_t n, Dtype type, const void* bias) {
  HWY_DYNAMIC_DISPATCH(AddBiasRows)(sums, lds, rows, n, type, bias);
}
void finish_sum(Dtype type, const float* sums, const void* residual, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(FinishSumRow)(type, sums, residual, out, n);
}
void finish_gated(Dtype type, Activation activation, const float* gate, const float* up, void* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(FinishGatedRow)(type, activation, gate, up, out, n);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
