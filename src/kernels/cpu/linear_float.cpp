// Float products with packed weights (linear_packed.h): lanes are weight rows, x is broadcast.
//
// A prepared row is x as floats, with 64 bytes behind it so that rows of a power of two do not fall into the same cache lines. x is gone
// through in blocks, so that many rows of it stay in a second-level cache while panels pass by.
#include <algorithm>
#include <bit>

#include "kernels/cpu/linear_float.h"
#include "kernels/cpu/weight_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_float.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_codes-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_FLOAT_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_FLOAT_ONCE_
namespace tersor::kernels {
constexpr size_t kBlock = 256;  // numbers of x; whole records of four groups
constexpr size_t kFewRows = 32;

// The upper two bytes of e4m3 values as floats, the lower two being 0, and where byte j of a lane finds its own behind one another.
struct E4m3Bytes {
  alignas(64) uint8_t high[128] = {}, low[128] = {}, places[4][64] = {};
  constexpr E4m3Bytes() {
    for (unsigned code = 0; code < 128; ++code) {
      const auto bits = std::bit_cast<uint32_t>(e4m3_value(static_cast<uint8_t>(code)));
      high[code] = static_cast<uint8_t>(bits >> 24), low[code] = static_cast<uint8_t>(bits >> 16);
    }
    for (unsigned j = 0; j < 4; ++j)
      for (unsigned i = 0; i < 64; ++i) places[j][i] = static_cast<uint8_t>(i / 4 * 4 + j + (i % 4 == 3 ? 64 : 0));
  }
};
constexpr E4m3Bytes kE4m3Bytes;

constexpr size_t row_floats(size_t in) { return ((in + 15) & ~size_t{15}) + 16; }
}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace packed {

// Rows of x that go together.
constexpr size_t kFloatTile = kLanes == 16 || HWY_TARGET == HWY_NEON ? 8 : 4;

// Sums of kRows rows of x with kWide vectors of weight rows, in kChains parts each where few rows would wait for one another.
template <size_t kRows, size_t kWide>
struct FloatSums {
  static constexpr size_t kChains = kRows >= 4 ? 1 : 4 / kRows;
  VF part[kRows][kWide][kChains];

  HWY_INLINE FloatSums() {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (size_t v = 0; v < kWide; ++v)
#pragma GCC unroll 4
        for (size_t c = 0; c < kChains; ++c) part[r][v][c] = hn::Zero(DF());
  }
  // w times number k of each row.
  HWY_INLINE void Add(const VF (&w)[kWide], const float* HWY_RESTRICT x, size_t ldx, size_t k) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const VF xv = hn::Set(DF(), x[r * ldx + k]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kWide; ++v) part[r][v][k % kChains] = hn::MulAdd(w[v], xv, part[r][v][k % kChains]);
    }
  }
  HWY_INLINE VF Total(size_t r, size_t v) const {
    const auto& parts = part[r][v];
    if constexpr (kChains == 4) return hn::Add(hn::Add(parts[0], parts[1]), hn::Add(parts[2], parts[3]));
    if constexpr (kChains == 2) return hn::Add(parts[0], parts[1]);
    return parts[0];
  }
};

// Where one call reads and writes: a panel's block of weights, rows of x from the block's first number on, results from one slice on.
struct Place {
  const uint8_t* HWY_RESTRICT weights;
  const float* HWY_RESTRICT x;
  size_t ldx, depth;
  float* HWY_RESTRICT out;
  size_t ldo, slice;
  bool add;  // to what stands in `out`
  HWY_INLINE void Store(size_t r, size_t v, VF sum) const {
    float* const to = out + r * ldo + (slice + v) * kLanes;
    hn::Store(add ? hn::Add(hn::Load(DF(), to), sum) : sum, DF(), to);
  }
};

template <Dtype kType>
struct DenseNumbers {
  static constexpr bool kDecodes = kType == Dtype::f16 && !convert::kNativeHalf;
  static constexpr size_t kWide = std::min<size_t>(kSlices, 2);

  // A block as floats.
  static void Decode(const uint8_t* HWY_RESTRICT weights, size_t depth, float* HWY_RESTRICT to) {
    RowToFloat<kType>(weights, to, depth * kPackedRows);
  }

  template <size_t kRows, bool kCold>
  static HWY_NOINLINE void Block(const Place& p) {
    FloatSums<kRows, kWide> sums;
    const auto add = [&](size_t k, size_t j) HWY_ATTR {
      VF w[kWide];
#pragma GCC unroll 4
      for (size_t v = 0; v < kWide; ++v) w[v] = LoadAsFloat<kType>(DF(), p.weights, (k + j) * kPackedRows + (p.slice + v) * kLanes);
      sums.Add(w, p.x + k, p.ldx, j);
    };
    constexpr size_t kBytes = 4 * kPackedRows * size_of(kType);  // of four numbers of each row
    size_t k = 0;
#pragma GCC unroll 1
    for (; k + 4 <= p.depth; k += 4) {
      if constexpr (kCold) {
#pragma GCC unroll 4
        for (size_t line = 0; line < kBytes; line += 64) hwy::Prefetch(p.weights + k / 4 * kBytes + line + 2048);
      }
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) add(k, j);
    }
    for (; k < p.depth; ++k) add(k, 0);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (size_t v = 0; v < kWide; ++v) p.Store(r, v, sums.Total(r, v));
  }
};

// Byte kByte of every lane, sign-extended.
template <int kByte>
HWY_INLINE VI SignedByte(VU quad) {
  return hn::ShiftRight<24>(hn::BitCast(DI(), kByte < 3 ? hn::ShiftLeft<24 - 8 * (kByte % 4)>(quad) : quad));
}

template <Coding kCoding>
struct MxCodes {
  static constexpr bool kDecodes = true;  // once for more rows of x than go together
  static constexpr size_t kWide = 1;
  static constexpr bool kE2m1 = kCoding == Coding::mxfp4;
  static constexpr int kBits = kE2m1 ? 4 : 8;

  // Code 4 * kQuad + kByte of every lane: twice the value of e2m1, the value of e4m3.
  template <int kByte>
  static HWY_INLINE VF Value(VU quad) {
    const DF d;
    if constexpr (kE2m1) {
      return hn::ConvertTo(d, SignedByte<kByte>(quad));
    } else {  // exponent and mantissa moved to a float's, whose exponents are 120 less
      const VI moved = hn::ShiftRight<4>(hn::BitCast(DI(), kByte < 3 ? hn::ShiftLeft<24 - 8 * (kByte % 4)>(quad) : quad));
      const VI bits = hn::And(moved, hn::Set(DI(), static_cast<int32_t>(0x87F00000u)));
      return hn::Mul(hn::BitCast(d, bits), hn::Set(d, 0x1p120f));
    }
  }

  // Hands the four numbers of each quad of a unit from kQuad on to take(number, k), k the place of the number in the unit.
  template <int kQuad, class F>
  static HWY_INLINE void ForEach(const uint8_t* HWY_RESTRICT unit, const F& take) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
    if constexpr (kE2m1) {  // the numbers themselves are looked up; the permute sees the lowest four bits
      alignas(64) static constexpr float kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
      const VF table = hn::Load(DF(), kTwice);
      const VU row = Row<kQuad / 2>(unit);
      constexpr int kFrom = 4 * (kQuad % 2);
      const auto number = [&](VU at) HWY_ATTR { return VF{_mm512_permutexvar_ps(at.raw, table.raw)}; };
      take(number(kFrom ? hn::ShiftRight<4>(row) : row), 4 * kQuad);
      take(number(hn::ShiftRight<kFrom + 8>(row)), 4 * kQuad + 1);
      take(number(hn::ShiftRight<kFrom + 16>(row)), 4 * kQuad + 2);
      take(number(hn::ShiftRight<kFrom + 24>(row)), 4 * kQuad + 3);
      if constexpr (kQuad < 7) ForEach<kQuad + 1>(unit, take);
      return;
    }
#endif
#if HWY_TARGET == HWY_AVX3_DL
    if constexpr (!kE2m1) {  // both bytes are looked up by the lower seven bits of a code
      const auto table = [](const uint8_t* from) HWY_ATTR { return _mm512_load_si512(from); };
      const __m512i codes = Row<kQuad>(unit).raw, sign = _mm512_set1_epi8(static_cast<char>(0x80));
      const __m512i low = _mm512_permutex2var_epi8(table(kE4m3Bytes.low), codes, table(kE4m3Bytes.low + 64));
      const __m512i size = _mm512_permutex2var_epi8(table(kE4m3Bytes.high), codes, table(kE4m3Bytes.high + 64));
      const __m512i high = _mm512_or_si512(size, _mm512_and_si512(codes, sign));
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const __m512i bits = _mm512_maskz_permutex2var_epi8(0xCCCCCCCCCCCCCCCC, low, table(kE4m3Bytes.places[j]), high);
        take(VF{_mm512_castsi512_ps(bits)}, 4 * kQuad + j);
      }
      if constexpr (kQuad < 7) ForEach<kQuad + 1>(unit, take);
      return;
    }
#endif
    VU quad = Quad<kBits, kQuad>(unit);
    if constexpr (kE2m1) quad = LookUp(kE2m1Twice, quad);
    take(Value<0>(quad), 4 * kQuad);
    take(Value<1>(quad), 4 * kQuad + 1);
    take(Value<2>(quad), 4 * kQuad + 2);
    take(Value<3>(quad), 4 * kQuad + 3);
    if constexpr (kQuad < 7) ForEach<kQuad + 1>(unit, take);
  }

  // What the numbers of group g of a block are to be multiplied with; `scales` belong to its record.
  static HWY_INLINE VF Scale(const uint8_t* scales, size_t g, size_t slice) {
    const VF scale = LoadExponents(scales + g % 4 * kPackedRows, slice * kLanes);
    return kE2m1 ? hn::Mul(scale, hn::Set(DF(), 0.5f)) : scale;
  }

  // A block as floats, number k of the 16 rows for each k.
  static HWY_NOINLINE void Decode(const uint8_t* HWY_RESTRICT weights, size_t depth, float* HWY_RESTRICT to) {
    const uint8_t* scales = weights;
    for (size_t g = 0; g < depth / 32; ++g, weights += 64 * kBits, to += 32 * kPackedRows) {
      if (g % 4 == 0) scales = weights, weights += 64;
      for (size_t slice = 0; slice < kSlices; ++slice) {
        const VF scale = Scale(scales, g, slice);
        ForEach<0>(weights + 4 * kLanes * slice,
                   [&](VF number, size_t k) HWY_ATTR { hn::Store(hn::Mul(number, scale), DF(), to + k * kPackedRows + slice * kLanes); });
      }
    }
  }

  template <size_t kRows, bool kCold>
  static HWY_NOINLINE void Block(const Place& p) {
    constexpr size_t kUnit = 64 * kBits;
    VF acc[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(DF());
    const uint8_t *at = p.weights, *scales = at;
#pragma GCC unroll 1
    for (size_t g = 0; g < p.depth / 32; ++g, at += kUnit) {
      if (g % 4 == 0) scales = at, at += 64;
      if constexpr (kCold) {
#pragma GCC unroll 8
        for (size_t line = 0; line < kUnit; line += 64) hwy::Prefetch(at + line + 2048);
      }
      FloatSums<kRows, 1> sums;
      const float* const x = p.x + 32 * g;
      ForEach<0>(at + 4 * kLanes * p.slice, [&](VF number, size_t k) HWY_ATTR { sums.Add({number}, x, p.ldx, k); });
      const VF scale = Scale(scales, g, p.slice);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(sums.Total(r, 0), scale, acc[r]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) p.Store(r, 0, acc[r]);
  }
};

// kCold: the weights come from memory.
template <class Format, size_t kRows, bool kCold = true>
HWY_INLINE void FloatSlices(Place p, size_t row) {
  p.x += row * p.ldx, p.out += row * p.ldo;
  for (p.slice = 0; p.slice < kSlices; p.slice += Format::kWide) Format::template Block<kRows, kCold>(p);
}

// All rows of x, as many at a time as have room for their sums in registers.
template <class Format, bool kCold>
HWY_INLINE void FloatRows(const Place& place, size_t rows) {
  size_t r = 0;
  for (; r + kFloatTile <= rows; r += kFloatTile) FloatSlices<Format, kFloatTile, kCold>(place, r);
  if (kFloatTile > 4 && r + 4 <= rows) FloatSlices<Format, 4>(place, r), r += 4;
  if (r + 2 <= rows) FloatSlices<Format, 2>(place, r), r += 2;
  if (r < rows) FloatSlices<Format, 1>(place, r);
}

template <class Format>
void FloatMultiply(const PackedMatrix& m, const float* x, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  const size_t ldx = row_floats(m.in);
  const auto place = [&](size_t p, size_t k) {
    const size_t at = m.bits ? m.scales_at(k / 32) : k * kPackedRows * size_of(m.type);
    const uint8_t* const weights = m.data + (first + p) * m.panel_bytes() + at;
    return Place{weights, x + k, ldx, std::min(kBlock, m.in - k), out + p * kPackedRows, ldo, 0, k > 0};
  };
  alignas(64) float decoded[Format::kDecodes ? kBlock * kPackedRows : 1];
  const auto multiply = [&](size_t p, size_t k) {
    Place block = place(p, k);
    if constexpr (Format::kDecodes) {
      if (rows > kFloatTile) {
        Format::Decode(block.weights, block.depth, decoded);
        block.weights = reinterpret_cast<const uint8_t*>(decoded);
        return FloatRows<DenseNumbers<Dtype::f32>, false>(block, rows);
      }
    }
    rows <= kFewRows ? FloatRows<Format, true>(block, rows) : FloatRows<Format, false>(block, rows);
  };
  if (rows <= kFewRows) {  // the weights are what takes the time: read in their order
    for (size_t p = 0; p < panels; ++p)
      for (size_t k = 0; k < m.in; k += kBlock) multiply(p, k);
  } else {
    for (size_t k = 0; k < m.in; k += kBlock)
      for (size_t p = 0; p < panels; ++p) multiply(p, k);
  }
}
}  // namespace packed

void FloatPrepare(const PackedMatrix& m, Dtype x_type, const void* x, size_t rows, float* prepared) {
  const size_t row_bytes = m.in * size_of(x_type);
  for (size_t r = 0; r < rows; ++r) ToFloat(x_type, static_cast<const char*>(x) + r * row_bytes, prepared + r * row_floats(m.in), m.in);
}

void FloatMultiply(const PackedMatrix& m, const float* x, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  if (m.coding == Coding::mxfp4) return packed::FloatMultiply<packed::MxCodes<Coding::mxfp4>>(m, x, rows, first, panels, out, ldo);
  if (m.coding == Coding::mxfp8) return packed::FloatMultiply<packed::MxCodes<Coding::mxfp8>>(m, x, rows, first, panels, out, ldo);
  switch (m.type) {
    case Dtype::f32: return packed::FloatMultiply<packed::DenseNumbers<Dtype::f32>>(m, x, rows, first, panels, out, ldo);
    case Dtype::f16: return packed::FloatMultiply<packed::DenseNumbers<Dtype::f16>>(m, x, rows, first, panels, out, ldo);
    case Dtype::bf16: return packed::FloatMultiply<packed::DenseNumbers<Dtype::bf16>>(m, x, rows, first, panels, out, ldo);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(FloatPrepare);
HWY_EXPORT(FloatMultiply);

size_t float_prepared_bytes(const PackedMatrix& m) { return row_floats(m.in) * sizeof(float); }
size_t float_pass_bytes(const PackedMatrix& m) { return std::min(m.in, kBlock) * sizeof(float); }

void float_prepare(const PackedMatrix& m, Dtype x_type, const void* x, size_t rows, void* prepared) {
  HWY_DYNAMIC_DISPATCH(FloatPrepare)(m, x_type, x, rows, static_cast<float*>(prepared));
}

void float_multiply(const PackedMatrix& m, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo) {
  HWY_DYNAMIC_DISPATCH(FloatMultiply)(m, static_cast<const float*>(prepared), rows, panel, panels, out, ldo);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
