// Integer products with packed weights (linear_packed.h): lanes are weight rows, so nothing is summed across lanes.
//
// Codes of mxfp4 are looked up in registers as twice their value plus 12, bytes of 0 to 24; that 12 is taken back where a group's sum
// starts.
// With VNNI the 16-bit activations are split, X = 256 h + l with h and l in int8, and a quad of 64 codes takes two dot-product
// instructions; elsewhere the codes are widened to 16 bits, two of a quad at a time, and multiplied in pairs.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/linear_float.h"
#include "kernels/cpu/linear_packed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_packed.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_codes-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_PACKED_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_PACKED_ONCE_
namespace tersor::kernels {
// A prepared row: per unit of 32 activations 64 bytes, then the groups' factors d, then the groups' sums of x, both float. For mxfp4 the
// factors are d / 2, and instead of the sums there are the int32 starts of the groups' integer sums.
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
constexpr int32_t kE2m1Offset = 12;
alignas(16) constexpr int8_t kE2m1Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace packed {

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
    VI total = hn::Zero(di);
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
        const VI ints = hn::NearestInt(hn::Mul(v, inverse));
        StoreInts(ints, i, row + 2 * (g * group + unit));
        total = hn::Add(total, ints);
      }
    if (m.coding == Coding::mxfp4) {
      factors[g] *= 0.5f;
      const int32_t start = -kE2m1Offset * hn::GetLane(hn::SumOfLanes(di, total));
      std::memcpy(sums + g, &start, sizeof start);
    }
  }
}

// ---- products ----

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
  HWY_INLINE void Start(int32_t from) { high = hn::Zero(DI()), low = hn::Set(DI(), from); }
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
template <Coding kCoding, int kBits, size_t kRows, int kQuad = 0>
HWY_INLINE void AddUnit(const uint8_t* HWY_RESTRICT unit, const uint8_t* HWY_RESTRICT x, size_t stride, Sums (&sums)[kRows]) {
  VU codes = Quad<kBits, kQuad>(unit);
  if constexpr (kCoding == Coding::mxfp4) codes = LookUp(kE2m1Bytes, codes);
  VU even = codes, odd = codes;
  if constexpr (!kByteDots) {
    even = hn::And(codes, hn::Set(DU(), 0x00FF00FF));
    odd = hn::And(hn::ShiftRight<8>(codes), hn::Set(DU(), 0x00FF00FF));
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) sums[r].template Add<kQuad>(codes, even, odd, x + r * stride);
  if constexpr (kQuad < 7) AddUnit<kCoding, kBits, kRows, kQuad + 1>(unit, x, stride, sums);
}

// One panel (one slice of its lanes) times kRows rows of x.
template <Coding kCoding, int kBits, size_t kRows>
HWY_NOINLINE void PanelRows(const PackedMatrix& m, const PreparedRow& layout, const uint8_t* HWY_RESTRICT panel, size_t slice,
                            const uint8_t* HWY_RESTRICT x, float* HWY_RESTRICT out, size_t ldo) {
  const DF d;
  constexpr bool kAffine = kCoding == Coding::affine;
  constexpr size_t unit_bytes = 64 * kBits;
  const size_t units = kAffine ? m.units() : 1, group_bytes = kAffine ? m.record_bytes() : unit_bytes;
  VF acc[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
  const uint8_t *at = x, *scales = panel;
#pragma GCC unroll 1
  for (size_t g = 0; g < layout.groups; ++g) {
    Sums sums[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const int32_t*>(x + r * layout.bytes);
      sums[r].Start(kAffine ? 0 : row[layout.sums / 4 + g]);
    }
    if (!kAffine && g % 4 == 0) scales = panel, panel += 64;
#pragma GCC unroll 1
    for (size_t u = 0; u < units; ++u, at += 64) {
      if constexpr (kRows == 1) {
#pragma GCC unroll 8
        for (size_t line = 0; line < kBits; ++line) hwy::Prefetch(panel + u * unit_bytes + 64 * line + kLookahead);
      }
      AddUnit<kCoding, kBits, kRows>(panel + u * unit_bytes + 4 * kLanes * slice, at, layout.bytes, sums);
    }
    const VF scale = kAffine ? LoadScales(m.type, panel + units * unit_bytes, slice * kLanes)
                             : LoadExponents(scales + g % 4 * kPackedRows, slice * kLanes);
    const VF bias = kAffine ? LoadScales(m.type, panel + units * unit_bytes, kPackedRows + slice * kLanes) : scale;
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const float*>(x + r * layout.bytes);
      const VF factor = hn::Set(d, row[layout.factors / 4 + g]);
      if constexpr (kAffine) {
        acc[r] = hn::MulAdd(sums[r].Value(), hn::Mul(scale, factor), acc[r]);
        acc[r] = hn::MulAdd(bias, hn::Set(d, row[layout.sums / 4 + g]), acc[r]);
      } else {  // scale * factor alone could overflow
        acc[r] = hn::MulAdd(hn::Mul(sums[r].Value(), factor), scale, acc[r]);
      }
    }
    panel += group_bytes;
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) hn::Store(acc[r], d, out + r * ldo + slice * kLanes);
}

template <Coding kCoding, int kBits, size_t kRows>
HWY_INLINE void Slices(const PackedMatrix& m, const PreparedRow& layout, const uint8_t* panel, const uint8_t* x, float* out, size_t ldo) {
  for (size_t slice = 0; slice < kSlices; ++slice) PanelRows<kCoding, kBits, kRows>(m, layout, panel, slice, x, out, ldo);
}

template <Coding kCoding, int kBits>
void Multiply(const PackedMatrix& m, const uint8_t* prepared, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  const PreparedRow layout(m);
  for (size_t p = 0; p < panels; ++p) {
    const uint8_t* panel = m.data + (first + p) * m.panel_bytes();
    for (size_t r = 0; r < rows;) {
      const uint8_t* x = prepared + r * layout.bytes;
      float* to = out + r * ldo + p * kPackedRows;
      size_t step = std::min(rows - r, kRowTile);
      switch (step) {
        case 1: Slices<kCoding, kBits, 1>(m, layout, panel, x, to, ldo); break;
        case 2: Slices<kCoding, kBits, 2>(m, layout, panel, x, to, ldo); break;
        case 3: Slices<kCoding, kBits, 3>(m, layout, panel, x, to, ldo); break;
        default:
          step = step < kRowTile ? 4 : kRowTile;
          if (step == 4) {
            Slices<kCoding, kBits, 4>(m, layout, panel, x, to, ldo);
          } else {
            Slices<kCoding, kBits, kRowTile>(m, layout, panel, x, to, ldo);
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
  if (m.coding == Coding::mxfp4) return packed::Multiply<Coding::mxfp4, 4>(m, x, rows, first, panels, out, ldo);
  switch (m.bits) {
    case 2: return packed::Multiply<Coding::affine, 2>(m, x, rows, first, panels, out, ldo);
    case 3: return packed::Multiply<Coding::affine, 3>(m, x, rows, first, panels, out, ldo);
    case 4: return packed::Multiply<Coding::affine, 4>(m, x, rows, first, panels, out, ldo);
    case 5: return packed::Multiply<Coding::affine, 5>(m, x, rows, first, panels, out, ldo);
    case 6: return packed::Multiply<Coding::affine, 6>(m, x, rows, first, panels, out, ldo);
    default: return packed::Multiply<Coding::affine, 8>(m, x, rows, first, panels, out, ldo);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(PackedPrepare);
HWY_EXPORT(PackedMultiply);

bool packed_alike(const PackedMatrix& a, const PackedMatrix& b) {
  const bool sums = a.bits && a.coding == Coding::affine, other_sums = b.bits && b.coding == Coding::affine;
  if (a.in != b.in || a.integers != b.integers || sums != other_sums) return false;
  return a.group == b.group || (!a.integers && !sums);
}

size_t packed_prepared_bytes(const PackedMatrix& m) { return m.integers ? PreparedRow(m).bytes : float_prepared_bytes(m); }
size_t packed_pass_bytes(const PackedMatrix& m) { return m.integers ? PreparedRow(m).bytes : float_pass_bytes(m); }

void packed_prepare(const PackedMatrix& matrix, Dtype x_type, const void* x, size_t rows, void* prepared) {
  if (!matrix.integers) return float_prepare(matrix, x_type, x, rows, prepared);
  HWY_DYNAMIC_DISPATCH(PackedPrepare)(matrix, x_type, x, rows, prepared);
}

void packed_multiply(const PackedMatrix& matrix, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo) {
  if (!matrix.integers) return float_multiply(matrix, prepared, rows, panel, panels, out, ldo);
  HWY_DYNAMIC_DISPATCH(PackedMultiply)(matrix, prepared, rows, panel, panels, out, ldo);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
