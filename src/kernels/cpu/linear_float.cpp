// Float products with packed weights (linear_packed.h): lanes are weight rows, x is broadcast.
//
// A prepared row is x as floats, with 64 bytes behind it so that rows of a power of two do not fall into the same cache lines, then, for
// affine codes, the groups' sums of x, which meet the biases. x is gone through in blocks, so that many rows of it stay in a second-level
// cache while panels pass by.
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
constexpr size_t kBlock = 256;  // numbers of x; whole groups, and whole records of four
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

// The prepared row in floats: where the groups' sums begin, and its length.
constexpr size_t sums_begin(const PackedMatrix& m) { return ((m.in + 15) & ~size_t{15}) + 16; }
inline size_t row_floats(const PackedMatrix& m) {
  return sums_begin(m) + (m.coding == Coding::affine ? (m.groups() + 15) & ~size_t{15} : 0);
}
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

// Where one call reads and writes: a panel's block of weights, rows of x and their sums from the block's first number and group on,
// results from one slice on.
struct Place {
  const PackedMatrix& matrix;
  const uint8_t* HWY_RESTRICT weights;
  const float *HWY_RESTRICT x, *HWY_RESTRICT sums;
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
  static void Decode(const Place& p, float* HWY_RESTRICT to) { RowToFloat<kType>(p.weights, to, p.depth * kPackedRows); }

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
        for (size_t line = 0; line < kBytes; line += 64) hwy::Prefetch(p.weights + k / 4 * kBytes + line + kLookahead);
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

template <Coding kCoding, int kBits>
struct Codes {
  static constexpr bool kDecodes = true;  // once for more rows of x than go together
  static constexpr size_t kWide = 1;
  static constexpr bool kAffine = kCoding == Coding::affine, kE2m1 = kCoding == Coding::mxfp4, kE4m3 = kCoding == Coding::mxfp8;
  static constexpr size_t kUnit = 64 * kBits;

  // Code 4 * kQuad + kByte of every lane: an affine code itself, twice the value of e2m1, the value of e4m3.
  template <int kByte>
  static HWY_INLINE VF Value(VU quad) {
    const DF d;
    if constexpr (kAffine && kBits == 8) {
      return hn::ConvertTo(d, hn::BitCast(DI(), hn::ShiftRight<24>(kByte < 3 ? hn::ShiftLeft<24 - 8 * (kByte % 4)>(quad) : quad)));
    } else if constexpr (!kE4m3) {
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
    if constexpr (kBits == 4) {  // the numbers themselves are looked up; the permute sees the lowest four bits
      alignas(64) static constexpr float kPlain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      alignas(64) static constexpr float kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};
      const VF table = hn::Load(DF(), kAffine ? kPlain : kTwice);
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
    if constexpr (kE4m3) {  // both bytes are looked up by the lower seven bits of a code
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

  // A walk through the groups of a block.
  struct Group {
    const uint8_t *next, *units, *scales, *line;
    explicit Group(const Place& p) : next(p.weights), units(next), scales(next), line(next) {}
    HWY_INLINE void Enter(const PackedMatrix& m, size_t g) {
      if constexpr (kAffine) {
        units = next, scales = units + m.units() * kUnit, next += m.record_bytes();
      } else {
        if (g % 4 == 0) line = next, next += 64;
        units = next, scales = line + g % 4 * kPackedRows, next += kUnit;
      }
    }
    HWY_INLINE VF Scale(const PackedMatrix& m, size_t slice) const {
      if constexpr (kAffine) return LoadScales(m.type, scales, slice * kLanes);
      const VF scale = LoadExponents(scales, slice * kLanes);
      return kE2m1 ? hn::Mul(scale, hn::Set(DF(), 0.5f)) : scale;
    }
    HWY_INLINE VF Bias(const PackedMatrix& m, size_t slice) const { return LoadScales(m.type, scales, kPackedRows + slice * kLanes); }
  };

  // A block as floats, number k of the 16 rows for each k.
  static HWY_NOINLINE void Decode(const Place& p, float* HWY_RESTRICT to) {
    const size_t units = p.matrix.units(), groups = p.depth / 32 / units;
    Group group(p);
    for (size_t g = 0; g < groups; ++g, to += units * 32 * kPackedRows) {
      group.Enter(p.matrix, g);
      for (size_t slice = 0; slice < kSlices; ++slice) {
        const VF scale = group.Scale(p.matrix, slice), bias = kAffine ? group.Bias(p.matrix, slice) : hn::Zero(DF());
        for (size_t u = 0; u < units; ++u) {
          float* const from = to + u * 32 * kPackedRows + slice * kLanes;
          ForEach<0>(group.units + u * kUnit + 4 * kLanes * slice, [&](VF number, size_t k) HWY_ATTR {
            hn::Store(kAffine ? hn::MulAdd(number, scale, bias) : hn::Mul(number, scale), DF(), from + k * kPackedRows);
          });
        }
      }
    }
  }

  template <size_t kRows, bool kCold>
  static HWY_NOINLINE void Block(const Place& p) {
    VF acc[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(DF());
    const size_t units = kAffine ? p.matrix.units() : 1, groups = p.depth / 32 / units;
    const float* x = p.x;
    Group group(p);
#pragma GCC unroll 1
    for (size_t g = 0; g < groups; ++g) {
      group.Enter(p.matrix, g);
      FloatSums<kRows, 1> sums;
#pragma GCC unroll 1
      for (size_t u = 0; u < units; ++u, x += 32) {
        const uint8_t* const unit = group.units + u * kUnit;
        if constexpr (kCold) {
#pragma GCC unroll 8
          for (size_t line = 0; line < kUnit; line += 64) hwy::Prefetch(unit + line + kLookahead);
        }
        ForEach<0>(unit + 4 * kLanes * p.slice, [&](VF number, size_t k) HWY_ATTR { sums.Add({number}, x, p.ldx, k); });
      }
      const VF scale = group.Scale(p.matrix, p.slice);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(sums.Total(r, 0), scale, acc[r]);
      if constexpr (kAffine) {
        const VF bias = group.Bias(p.matrix, p.slice);
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(bias, hn::Set(DF(), p.sums[r * p.ldx + g]), acc[r]);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) p.Store(r, 0, acc[r]);
  }
};

// kCold: the weights come from memory.
template <class Format, size_t kRows, bool kCold = true>
HWY_INLINE void FloatSlices(Place p, size_t row) {
  p.x += row * p.ldx, p.sums += row * p.ldx, p.out += row * p.ldo;
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
void FloatMultiplyAs(const PackedMatrix& m, const float* x, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  const size_t ldx = row_floats(m);
  const auto place = [&](size_t p, size_t k) {
    const size_t g = m.bits ? k / static_cast<size_t>(m.group) : 0;
    const size_t at = !m.bits ? k * kPackedRows * size_of(m.type) : m.coding == Coding::affine ? m.units_at(g) : m.scales_at(g);
    const uint8_t* const weights = m.data + (first + p) * m.panel_bytes() + at;
    const float* const sums = x + sums_begin(m) + g;
    return Place{m, weights, x + k, sums, ldx, std::min(kBlock, m.in - k), out + p * kPackedRows, ldo, 0, k > 0};
  };
  alignas(64) float decoded[Format::kDecodes ? kBlock * kPackedRows : 1];
  const auto multiply = [&](size_t p, size_t k) {
    Place block = place(p, k);
    if constexpr (Format::kDecodes) {
      if (rows > kFloatTile) {
        Format::Decode(block, decoded);
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
  const packed::DF d;
  const size_t row_bytes = m.in * size_of(x_type), group = static_cast<size_t>(m.group);
  for (size_t r = 0; r < rows; ++r) {
    float* const row = prepared + r * row_floats(m);
    ToFloat(x_type, static_cast<const char*>(x) + r * row_bytes, row, m.in);
    if (m.coding != Coding::affine) continue;
    for (size_t g = 0; g < m.groups(); ++g) {
      auto sum = packed::hn::Zero(d);
      for (size_t i = 0; i < group; i += packed::kLanes) sum = packed::hn::Add(sum, packed::hn::Load(d, row + g * group + i));
      row[sums_begin(m) + g] = packed::hn::GetLane(packed::hn::SumOfLanes(d, sum));
    }
  }
}

// The routine of a format.
auto FloatRoutine(const PackedMatrix& m) {
  using namespace packed;
  if (m.coding == Coding::mxfp4) return FloatMultiplyAs<Codes<Coding::mxfp4, 4>>;
  if (m.coding == Coding::mxfp8) return FloatMultiplyAs<Codes<Coding::mxfp8, 8>>;
  switch (m.bits) {
    case 2: return FloatMultiplyAs<Codes<Coding::affine, 2>>;
    case 3: return FloatMultiplyAs<Codes<Coding::affine, 3>>;
    case 4: return FloatMultiplyAs<Codes<Coding::affine, 4>>;
    case 5: return FloatMultiplyAs<Codes<Coding::affine, 5>>;
    case 6: return FloatMultiplyAs<Codes<Coding::affine, 6>>;
    case 8: return FloatMultiplyAs<Codes<Coding::affine, 8>>;
    default: break;
  }
  if (m.type == Dtype::f32) return FloatMultiplyAs<DenseNumbers<Dtype::f32>>;
  return m.type == Dtype::f16 ? FloatMultiplyAs<DenseNumbers<Dtype::f16>> : FloatMultiplyAs<DenseNumbers<Dtype::bf16>>;
}

void FloatMultiply(const PackedMatrix& m, const float* x, size_t rows, size_t first, size_t panels, float* out, size_t ldo) {
  FloatRoutine(m)(m, x, rows, first, panels, out, ldo);
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(FloatPrepare);
HWY_EXPORT(FloatMultiply);

size_t float_prepared_bytes(const PackedMatrix& m) { return row_floats(m) * sizeof(float); }
size_t float_pass_bytes(const PackedMatrix& m) { return std::min(m.in, kBlock) * sizeof(float); }

void float_prepare(const PackedMatrix& m, Dtype x_type, const void* x, size_t rows, void* prepared) {
  HWY_DYNAMIC_DISPATCH(FloatPrepare)(m, x_type, x, rows, static_cast<float*>(prepared));
}

void float_multiply(const PackedMatrix& m, const void* prepared, size_t rows, size_t panel, size_t panels, float* out, size_t ldo) {
  HWY_DYNAMIC_DISPATCH(FloatMultiply)(m, static_cast<const float*>(prepared), rows, panel, panels, out, ldo);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
