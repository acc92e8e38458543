// Integer products with packed weights (linear_packed.h): lanes are weight rows, so nothing is summed across lanes.
//
// With VNNI the 16-bit activations are split, X = 256 h + l with h and l in int8, and a quad of 64 codes takes two dot-product
// instructions; elsewhere the codes are widened to 16 bits, two of a quad at a time, and multiplied in pairs.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/linear_packed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_packed.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_PACKED_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_PACKED_ONCE_
namespace tersor::kernels {
// A prepared row: per unit of 32 activations 64 bytes, then the groups' factors d, then the groups' sums of x, both float.
struct PreparedRow {
  size_t units, groups, factors, sums, bytes;
  explicit PreparedRow(const PackedMatrix& m)
      : units(m.in / 32),
        groups(m.groups()),
        factors(64 * units),
        sums(factors + 4 * groups),
        bytes((sums + 4 * groups + 63) & ~size_t{63}) {}
};
// Largest magnitude of X: 127 * 256 + 127, so that its high part fits a signed byte.
constexpr float kTop = 32639.0f;
// Bytes that one row of x prefetches ahead: what the memory delivers to a core while one read is under way, and as much again.
constexpr size_t kLookahead = 4096;
}  // namespace tersor::kernels
#endif

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

#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kByteDots = true;
#else
constexpr bool kByteDots = false;
#endif
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
constexpr size_t kRowTile = 8;  // rows of x whose sums stay in registers
#elif HWY_TARGET == HWY_NEON
constexpr size_t kRowTile = 6;
#else
constexpr size_t kRowTile = 4;
#endif

// ---- activations ----

// Integers i .. i + kLanes of a unit as bytes of the prepared form: for byte dots 32 high parts, then 32 low parts; otherwise 16-bit
// numbers, of each quad the even ones first.
HWY_INLINE void StoreInts(VI ints, size_t i, uint8_t* HWY_RESTRICT unit) {
  const DI di;
  if constexpr (kByteDots) {
    const hn::Rebind<int8_t, DI> d8;
    const VI high = hn::ShiftRight<8>(hn::Add(ints, hn::Set(di, 128)));
    auto* to = reinterpret_cast<int8_t*>(unit) + i;
    hn::StoreU(hn::DemoteTo(d8, high), d8, to);
    hn::StoreU(hn::DemoteTo(d8, hn::Sub(ints, hn::ShiftLeft<8>(high))), d8, to + 32);
  } else {
    const hn::Rebind<int16_t, DI> d16;
    alignas(16) constexpr uint8_t kEvenFirst[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    const auto order = hn::BitCast(di, hn::LoadDup128(DB(), kEvenFirst));
    hn::StoreU(hn::DemoteTo(d16, hn::TableLookupBytes(ints, order)), d16, reinterpret_cast<int16_t*>(unit) + i);
  }
}

// How a group is scaled: X = round(x * inverse), x ~ X * factor.
struct GroupScale {
  float factor, inverse;
  // `sum` is not finite whenever an element is not; `most` may miss a NaN.
  GroupScale(float most, float sum) : factor(most / kTop), inverse(kTop / most) {
    if (!(sum - sum == 0 && most <= std::numeric_limits<float>::max())) {
      factor = std::numeric_limits<float>::quiet_NaN(), inverse = 0;
    } else if (!(inverse <= std::numeric_limits<float>::max())) {  // nothing but zeros and subnormals
      factor = inverse = 0;
    }
  }
};

template <Dtype kType>
void PrepareRow(const PackedMatrix& m, const void* x, size_t at, uint8_t* HWY_RESTRICT row) {
  const DF d;
  const DI di;
  const PreparedRow layout(m);
  const size_t group = static_cast<size_t>(m.group);
  auto* factors = reinterpret_cast<float*>(row + layout.factors);
  auto* sums = reinterpret_cast<float*>(row + layout.sums);
  alignas(64) float values[128];
  for (size_t g = 0; g < layout.groups; ++g) {
    VF top = hn::Zero(d), sum = hn::Zero(d);
    for (size_t i = 0; i < group; i += kLanes) {
      const VF v = LoadAsFloat<kType>(d, x, at + g * group + i);
      hn::Store(v, d, values + i);
      top = hn::Max(top, hn::Abs(v));
      sum = hn::Add(sum, v);
    }
    sums[g] = hn::GetLane(hn::SumOfLanes(d, sum));
    const GroupScale scale(hn::GetLane(hn::MaxOfLanes(d, top)), sums[g]);
    factors[g] = scale.factor;
    const VF inverse = hn::Set(d, scale.inverse);
    const auto usable = hn::MaskFromVec(hn::BitCast(DF(), hn::Set(di, scale.inverse > 0 ? -1 : 0)));
    for (size_t unit = 0; unit < group; unit += 32)
      for (size_t i = 0; i < 32; i += kLanes) {
        const VF v = hn::IfThenElseZero(usable, hn::Load(d, values + unit + i));
        StoreInts(hn::NearestInt(hn::Mul(v, inverse)), i, row + 2 * (g * group + unit));
      }
  }
}

// ---- products ----

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

HWY_INLINE VU Broadcast(const uint8_t* HWY_RESTRICT at) {
  int32_t word;
  std::memcpy(&word, at, 4);
  return hn::BitCast(DU(), hn::Set(DI(), word));
}

// Sums of products of 16-bit integers in pairs: one 32-bit lane a pair.
HWY_INLINE VI PairProducts(VU a, VU b) {
#if HWY_TARGET == HWY_NEON
  const hn::Half<DS> half;
  const auto a16 = hn::BitCast(DS(), a), b16 = hn::BitCast(DS(), b);
  const auto low = vmull_s16(hn::LowerHalf(half, a16).raw, hn::LowerHalf(half, b16).raw);
  const auto high = vmull_s16(hn::UpperHalf(half, a16).raw, hn::UpperHalf(half, b16).raw);
  return VI(vpaddq_s32(low, high));
#else
  VI unused = hn::Zero(DI());
  return hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(DS(), a), hn::BitCast(DS(), b), hn::Zero(DI()), unused);
#endif
}

// Integer sums of one group and one row of x, and one more quad into them.
struct Sums {
  VI high, low;
  HWY_INLINE void Clear() { high = low = hn::Zero(DI()); }
  HWY_INLINE VF Value() const {
    if constexpr (kByteDots) return hn::ConvertTo(DF(), hn::Add(hn::ShiftLeft<8>(high), low));
    return hn::ConvertTo(DF(), hn::Add(high, low));
  }
  template <int kQuad>
  HWY_INLINE void Add(VU codes, VU even, VU odd, const uint8_t* HWY_RESTRICT x) {
#if HWY_TARGET == HWY_AVX3_DL
    (void)even, (void)odd;
    high.raw = _mm512_dpbusd_epi32(high.raw, codes.raw, Broadcast(x + 4 * kQuad).raw);
    low.raw = _mm512_dpbusd_epi32(low.raw, codes.raw, Broadcast(x + 32 + 4 * kQuad).raw);
#else
    (void)codes;
    high = hn::Add(high, PairProducts(even, Broadcast(x + 8 * kQuad)));
    low = hn::Add(low, PairProducts(odd, Broadcast(x + 8 * kQuad + 4)));
#endif
  }
};

// One unit of one slice times kRows rows of x, quads kQuad and up.
template <int kBits, size_t kRows, int kQuad = 0>
HWY_INLINE void AddUnit(const uint8_t* HWY_RESTRICT unit, const uint8_t* HWY_RESTRICT x, size_t stride, Sums (&sums)[kRows]) {
  const VU codes = Quad<kBits, kQuad>(unit);
  VU even = codes, odd = codes;
  if constexpr (!kByteDots) {
    even = hn::And(codes, hn::Set(DU(), 0x00FF00FF));
    odd = hn::And(hn::ShiftRight<8>(codes), hn::Set(DU(), 0x00FF00FF));
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) sums[r].template Add<kQuad>(codes, even, odd, x + r * stride);
  if constexpr (kQuad < 7) AddUnit<kBits, kRows, kQuad + 1>(unit, x, stride, sums);
}

// One vector of a record's scales or biases.
HWY_INLINE VF LoadScales(Dtype type, const uint8_t* HWY_RESTRICT tail, size_t at) {
  const DF d;
  if (type == Dtype::f16) return LoadAsFloat<Dtype::f16>(d, tail, at);
  if (type == Dtype::bf16) return LoadAsFloat<Dtype::bf16>(d, tail, at);
  return LoadAsFloat<Dtype::f32>(d, tail, at);
}

// One panel (one slice of its lanes) times kRows rows of x.
template <int kBits, size_t kRows>
HWY_NOINLINE void PanelRows(const PackedMatrix& m, const PreparedRow& layout, const uint8_t* HWY_RESTRICT panel, size_t slice,
                            const uint8_t* HWY_RESTRICT x, float* HWY_RESTRICT out, size_t ldo) {
  const DF d;
  const size_t units = static_cast<size_t>(m.group) / 32, record_bytes = m.record_bytes();
  constexpr size_t unit_bytes = 64 * kBits;
  VF acc[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
  const uint8_t* at = x;
#pragma GCC unroll 1
  for (size_t g = 0; g < layout.groups; ++g) {
    Sums sums[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) sums[r].Clear();
#pragma GCC unroll 1
    for (size_t u = 0; u < units; ++u, at += 64) {
      if constexpr (kRows == 1) {
#pragma GCC unroll 8
        for (size_t line = 0; line < kBits; ++line) hwy::Prefetch(panel + u * unit_bytes + 64 * line + kLookahead);
      }
      AddUnit<kBits, kRows>(panel + u * unit_bytes + 4 * kLanes * slice, at, layout.bytes, sums);
    }
    const uint8_t* const tail = panel + units * unit_bytes;
    const VF scale = LoadScales(m.scale_type, tail, slice * kLanes);
    const VF bias = LoadScales(m.scale_type, tail, kPackedRows + slice * kLanes);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const float*>(x + r * layout.bytes);
      acc[r] = hn::MulAdd(sums[r].Value(), hn::Mul(scale, hn::Set(d, row[layout.factors / 4 + g])), acc[r]);
      acc[r] = hn::MulAdd(bias, hn::Set(d, row[layout.sums / 4 + g]), acc[r]);
    }
    panel += record_bytes;
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) hn::Store(acc[r], d, out + r * ldo + slice * kLanes);
}

template <int kBits, size_t kRows>
HWY_INLINE void Slices(const PackedMatrix& m, const PreparedRow& layout, const uint8_t* panel, const uint8_t* x, float* out, size_t ldo) {
  for (size_t slice = 0; slice < kSlices; ++slice) PanelRows<kBits, kRows>(m, layout, panel, slice, x, out, ldo);
}

template <int kBits>
void Multiply(const PackedMatrix& m, const uint8_t* prepared, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  const PreparedRow layout(m);
  for (size_t p = 0; p < panels; ++p) {
    const uint8_t* panel = m.data + (first + p) * m.panel_bytes();
    for (size_t r = 0; r < rows;) {
      const uint8_t* x = prepared + r * layout.bytes;
      float* to = out + r * ldo + p * kPackedRows;
      size_t step = std::min(rows - r, kRowTile);
      switch (step) {
        case 1: Slices<kBits, 1>(m, layout, panel, x, to, ldo); break;
        case 2: Slices<kBits, 2>(m, layout, panel, x, to, ldo); break;
        case 3: Slices<kBits, 3>(m, layout, panel, x, to, ldo); break;
        default:
          step = step < kRowTile ? 4 : kRowTile;
          if (step == 4) {
            Slices<kBits, 4>(m, layout, panel, x, to, ldo);
          } else {
            Slices<kBits, kRowTile>(m, layout, panel, x, to, ldo);
          }
      }
      r += step;
    }
  }
}
}  // namespace packed

void PackedPrepare(const PackedMatrix& m, Dtype x_type, const void* x, size_t rows, void* prepared) {
  const PreparedRow layout(m);
  for (size_t r = 0; r < rows; ++r) {
    auto* const row = static_cast<uint8_t*>(prepared) + r * layout.bytes;
    switch (x_type) {
      case Dtype::f32: packed::PrepareRow<Dtype::f32>(m, x, r * m.in, row); break;
      case Dtype::f16: packed::PrepareRow<Dtype::f16>(m, x, r * m.in, row); break;
      case Dtype::bf16: packed::PrepareRow<Dtype::bf16>(m, x, r * m.in, row); break;
    }
  }
}

void PackedMultiply(const PackedMatrix& m, const void* prepared, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  const auto* x = static_cast<const uint8_t*>(prepared);
  switch (m.bits) {
    case 2: return packed::Multiply<2>(m, x, rows, first, panels, out, ldo);
    case 3: return packed::Multiply<3>(m, x, rows, first, panels, out, ldo);
    case 4: return packed::Multiply<4>(m, x, rows, first, panels, out, ldo);
    case 5: return packed::Multiply<5>(m, x, rows, first, panels, out, ldo);
    case 6: return packed::Multiply<6>(m, x, rows, first, panels, out, ldo);
    default: return packed::Multiply<8>(m, x, rows, first, panels, out, ldo);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(PackedPrepare);
HWY_EXPORT(PackedMultiply);

size_t packed_prepared_bytes(const PackedMatrix& matrix) { return PreparedRow(matrix).bytes; }

void packed_prepare(const PackedMatrix& matrix, Dtype x_type, const void* x, size_t rows, void* prepared) {
  HWY_DYNAMIC_DISPATCH(PackedPrepare)(matrix, x_type, x, rows, prepared);
}

void packed_multiply(const PackedMatrix& matrix, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo) {
  HWY_DYNAMIC_DISPATCH(PackedMultiply)(matrix, prepared, rows, panel, panels, out, ldo);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
