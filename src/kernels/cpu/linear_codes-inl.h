// Reading the packed layout (linear_packed.h) in vectors: lanes are weight rows.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_LINEAR_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_LINEAR_CODES_INL_H_
#undef TERSOR_KERNELS_CPU_LINEAR_CODES_INL_H_
#else
#define TERSOR_KERNELS_CPU_LINEAR_CODES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/linear_packed.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace packed {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using DI = hn::Repartition<int32_t, DF>;
using DU = hn::Repartition<uint32_t, DF>;
using DS = hn::Repartition<int16_t, DF>;
using DB = hn::Repartition<uint8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;
constexpr size_t kLanes = hn::MaxLanes(DF());
constexpr size_t kSlices = kPackedRows / kLanes;  // vectors a row of the layout takes
// Bytes that few rows of x prefetch ahead: what the memory delivers to a core while one read is under way, and as much again.
constexpr size_t kLookahead = 4096;

// Bits [kFrom, kFrom + kBits) of every byte, moved to kTo.
template <int kFrom, int kTo, int kBits>
HWY_INLINE VU Field(VU v) {
  if constexpr (kFrom > kTo) v = hn::ShiftRight<kFrom - kTo>(v);
  if constexpr (kFrom < kTo) v = hn::ShiftLeft<kTo - kFrom>(v);
  return hn::And(v, hn::Set(DU(), (((1u << kBits) - 1) << kTo) * 0x01010101u));
}
template <int kRow>
HWY_INLINE VU Row(const uint8_t* HWY_RESTRICT unit) {
  return hn::BitCast(DU(), hn::Load(DB(), unit + 64 * kRow));
}

// Quad kQuad of a unit: 4 codes of each lane, one a byte. `unit` points at this slice's lanes.
template <int kBits, int kQuad>
HWY_INLINE VU Quad(const uint8_t* HWY_RESTRICT unit) {
  if constexpr (kBits == 8) {
    return Row<kQuad>(unit);
  } else if constexpr (kBits == 4) {
    return Field<4 * (kQuad % 2), 0, 4>(Row<kQuad / 2>(unit));
  } else if constexpr (kBits == 2) {
    return Field<2 * (kQuad % 4), 0, 2>(Row<kQuad / 4>(unit));
  } else if constexpr (kBits == 3) {
    return hn::Or(Quad<2, kQuad>(unit), Field<kQuad, 2, 1>(Row<2>(unit)));
  } else if constexpr (kBits == 5) {
    return hn::Or(Quad<4, kQuad>(unit), Field<kQuad, 4, 1>(Row<4>(unit)));
  } else {
    return hn::Or(Quad<4, kQuad>(unit), Field<2 * (kQuad % 4), 4, 2>(Row<4 + kQuad / 4>(unit)));
  }
}

// One vector of a record's scales or biases.
HWY_INLINE VF LoadScales(Dtype type, const uint8_t* HWY_RESTRICT tail, size_t at) {
  const DF d;
  if (type == Dtype::f16) return LoadAsFloat<Dtype::f16>(d, tail, at);
  if (type == Dtype::bf16) return LoadAsFloat<Dtype::bf16>(d, tail, at);
  return LoadAsFloat<Dtype::f32>(d, tail, at);
}

// The scales of one slice of a group of mxfp4 or mxfp8, from bytes: exponents, of which the lowest is a subnormal and the highest NaN.
HWY_INLINE VF LoadExponents(const uint8_t* HWY_RESTRICT scales, size_t at) {
  const DU du;
  const VU code = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, DU>(), scales + at));
  const auto ends = hn::Or(hn::Eq(code, hn::Zero(du)), hn::Eq(code, hn::Set(du, 255)));
  return hn::BitCast(DF(), hn::Or(hn::ShiftLeft<23>(code), hn::IfThenElseZero(ends, hn::Set(du, 0x00400000))));
}

// Of each of 16 numbers of a table, the one that the low four bits of a byte name; the upper bits must be 0.
HWY_INLINE VU LookUp(const int8_t (&table)[16], VU nibbles) {
  const hn::Repartition<int8_t, DF> d8;
  return hn::BitCast(DU(), hn::TableLookupBytes(hn::LoadDup128(d8, table), hn::BitCast(d8, nibbles)));
}

}  // namespace packed
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
