// Vectors of f16 and bf16 as vectors of float and back.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_FLOAT_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_FLOAT_CONVERT_INL_H_
#undef TERSOR_KERNELS_CPU_FLOAT_CONVERT_INL_H_
#else
#define TERSOR_KERNELS_CPU_FLOAT_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "tersor/base.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace convert {
namespace hn = hwy::HWY_NAMESPACE;

// Highway 1.0.3 uses the processor's f16 conversions from AVX2 on and on 64-bit ARM; what it emulates elsewhere is wrong for
// infinities and NaN, so there the bits are moved here.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
constexpr bool kNativeHalf = true;
#else
constexpr bool kNativeHalf = false;
#endif

// f16 bits, zero-extended in 32-bit lanes, to float. Subnormals come out by an exact subtraction.
template <class D, class V = hn::Vec<D>, class VU = hn::Vec<hn::Repartition<uint32_t, D>>>
HWY_INLINE V HalfBitsToFloat(D d, VU bits) {
  const hn::Repartition<uint32_t, D> du;
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
  const auto exponent = hn::And(magnitude, hn::Set(du, 0x7C00u << 13));
  auto value = hn::Add(magnitude, hn::Set(du, (127u - 15) << 23));
  value = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7C00u << 13)), hn::Add(value, hn::Set(du, (128u - 16) << 23)), value);
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(value, hn::Set(du, 1u << 23))), hn::BitCast(d, hn::Set(du, 113u << 23)));
  value = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), hn::BitCast(du, subnormal), value);
  return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)))));
}

// Float to f16 bits in 32-bit lanes, to nearest even.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto HalfBitsFromFloat(D d, V v) {
  const hn::Repartition<int32_t, D> di;  // all values compared are below 2^31
  const auto bits = hn::BitCast(di, v);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(di, (112 << 23) - 0xFFF)), odd));
  // Adding 0.5 puts the last kept bit of a subnormal at the last bit of the float's mantissa.
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
  const auto infinity = hn::Set(di, 0x7C00);
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 113 << 23)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, (143 << 23) - 1)), infinity, result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 255 << 23)), hn::Set(di, 0x7E00), result);
  return hn::BitCast(hn::Repartition<uint32_t, D>(), hn::Or(result, sign));
}

// Float to bf16 bits in 32-bit lanes, to nearest even.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto BfloatBitsFromFloat(D d, V v) {
  const hn::Repartition<uint32_t, D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto is_number = hn::RebindMask(du, hn::Eq(v, v));
  (void)d;
  return hn::IfThenElse(is_number, rounded, quiet);
}

template <Dtype kType>
HWY_INLINE float LoadOne(const void* from, size_t i) {
  if constexpr (kType == Dtype::f32) return static_cast<const float*>(from)[i];
  const uint16_t bits = static_cast<const uint16_t*>(from)[i];
  return kType == Dtype::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

template <Dtype kType>
HWY_INLINE void StoreOne(float v, void* to, size_t i) {
  if constexpr (kType == Dtype::f32) {
    static_cast<float*>(to)[i] = v;
  } else {
    static_cast<uint16_t*>(to)[i] = kType == Dtype::f16 ? float_to_half(v) : float_to_bfloat(v);
  }
}
}  // namespace convert

/// Lanes(d) numbers of type kType from from[i..] (unaligned) as floats.
template <Dtype kType, class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadAsFloat(D d, const void* HWY_RESTRICT from, size_t i) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kType == Dtype::f32) {
    return hn::LoadU(d, static_cast<const float*>(from) + i);
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Repartition<uint32_t, D> du;
    const auto bits = hn::LoadU(d16, static_cast<const uint16_t*>(from) + i);
    if constexpr (kType == Dtype::bf16) {
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
    } else if constexpr (convert::kNativeHalf) {
      return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
    } else {
      return convert::HalfBitsToFloat(d, hn::PromoteTo(du, bits));
    }
  }
}

/// Lanes(d) floats to to[i..] (unaligned) as kType, rounded to nearest even.
template <Dtype kType, class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void StoreFromFloat(D d, V v, void* HWY_RESTRICT to, size_t i) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kType == Dtype::f32) {
    hn::StoreU(v, d, static_cast<float*>(to) + i);
  } else {
    const hn::Rebind<uint16_t, D> d16;
    uint16_t* out = static_cast<uint16_t*>(to) + i;
    if constexpr (kType == Dtype::bf16) {
      hn::StoreU(hn::TruncateTo(d16, convert::BfloatBitsFromFloat(d, v)), d16, out);
    } else if constexpr (convert::kNativeHalf) {
      hn::StoreU(hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v)), d16, out);
    } else {
      hn::StoreU(hn::TruncateTo(d16, convert::HalfBitsFromFloat(d, v)), d16, out);
    }
  }
}

/// n numbers of type kType as floats.
template <Dtype kType>
void RowToFloat(const void* HWY_RESTRICT from, float* HWY_RESTRICT to, size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(LoadAsFloat<kType>(d, from, i), d, to + i);
  if (i == n) return;
  if (n >= hn::Lanes(d)) {  // once more, the last full vector
    hn::StoreU(LoadAsFloat<kType>(d, from, n - hn::Lanes(d)), d, to + n - hn::Lanes(d));
  } else {
    for (; i < n; ++i) to[i] = convert::LoadOne<kType>(from, i);
  }
}

/// n floats as kType.
template <Dtype kType>
void RowFromFloat(const float* HWY_RESTRICT from, void* HWY_RESTRICT to, size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) StoreFromFloat<kType>(d, hn::LoadU(d, from + i), to, i);
  for (; i < n; ++i) convert::StoreOne<kType>(from[i], to, i);
}

/// The same with the type known at run time.
inline void ToFloat(Dtype type, const void* from, float* to, size_t n) {
  switch (type) {
    case Dtype::f32: return RowToFloat<Dtype::f32>(from, to, n);
    case Dtype::f16: return RowToFloat<Dtype::f16>(from, to, n);
    case Dtype::bf16: return RowToFloat<Dtype::bf16>(from, to, n);
  }
}
inline void FromFloat(Dtype type, const float* from, void* to, size_t n) {
  switch (type) {
    case Dtype::f32: return RowFromFloat<Dtype::f32>(from, to, n);
    case Dtype::f16: return RowFromFloat<Dtype::f16>(from, to, n);
    case Dtype::bf16: return RowFromFloat<Dtype::bf16>(from, to, n);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
