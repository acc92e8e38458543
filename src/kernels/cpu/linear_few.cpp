// Linear layers for a few rows of x: weights are read once, in their packed order.
//
// A vector holds consecutive words of a weight row. For each slot of CodePieces the codes are masked out in place, converted and
// multiplied with a copy of x that was brought into that order and scaled by the place's power of two beforehand: and, convert,
// multiply-add, nothing else. The sum over a vector is scaled per lane (lanes of one vector belong to several groups), and the group
// biases meet the group sums of x once a row.
#include <algorithm>

#include "kernels/cpu/code_pieces.h"
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_few.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_FEW_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_FEW_ONCE_
namespace tersor::kernels {
constexpr size_t kWeightRows = 4;  // weight rows that go together: enough sums at once to hide the multiply-add's latency

constexpr size_t round16(size_t n) { return (n + 15) & ~size_t{15}; }
// Weight rows whose scales are converted at a time: many, so that they are not read back at once, but few enough for the
// first-level cache.
constexpr size_t scale_rows(size_t groups) { return std::clamp<size_t>(512 / groups / kWeightRows, 1, 8) * kWeightRows; }
constexpr int slots_of(int bits) {
  switch (bits) {
    case 2: return CodePieces<2>::kSlots;
    case 3: return CodePieces<3>::kSlots;
    case 4: return CodePieces<4>::kSlots;
    case 5: return CodePieces<5>::kSlots;
    case 6: return CodePieces<6>::kSlots;
    default: return CodePieces<8>::kSlots;
  }
}

// The prepared buffer, the same size for every SIMD target:
//   int32 first[words]: for each vector, the first group its words belong to
//   int32 lane[words]:  for each word, its group counted from there
//   per row of x: float pieces[vector][slot][lane], float sums[groups]
//   one row of floats to convert x in.
struct PreparedLayout {
  size_t words, groups, row, tables, total;
  PreparedLayout(const LinearMatrix& m, size_t rows) {
    words = m.in * static_cast<size_t>(m.bits) / 32;
    groups = m.bits ? m.in / static_cast<size_t>(m.group) : 0;
    tables = m.bits ? 2 * round16(words) : 0;
    row = m.bits ? static_cast<size_t>(slots_of(m.bits)) * round16(words) + round16(groups) : round16(m.in);
    total = tables + rows * row + (m.bits ? round16(m.in) : 0);
  }
  const int32_t* first(const float* p) const { return reinterpret_cast<const int32_t*>(p); }
  const int32_t* lane(const float* p) const { return reinterpret_cast<const int32_t*>(p) + round16(words); }
  const float* pieces(const float* p, size_t r) const { return p + tables + r * row; }
  const float* sums(const float* p, size_t r) const { return p + tables + (r + 1) * row - round16(groups); }
};
}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace few {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr size_t kLanes = hn::MaxLanes(DF());

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr bool kMaskedLoads = true;
#else
constexpr bool kMaskedLoads = false;
#endif

// Masks for a vector whose first word is word `phase` of its unit.
template <int kBits>
struct Masks {
  using Pieces = CodePieces<kBits>;
  alignas(64) uint32_t mask[Pieces::kPhases][Pieces::kSlots][kLanes];
  constexpr Masks() : mask() {
    constexpr auto table = Pieces::make();
    for (int p = 0; p < Pieces::kPhases; ++p)
      for (int s = 0; s < Pieces::kSlots; ++s)
        for (size_t l = 0; l < kLanes; ++l) mask[p][s][l] = table[(p + l) % Pieces::kPhases][s].mask;
  }
};
template <int kBits>
constexpr Masks<kBits> kMasks;

template <int kBits>
void PrepareRow(const PreparedLayout& layout, const float* x, float* pieces, float* sums, size_t group) {
  using Pieces = CodePieces<kBits>;
  constexpr auto table = Pieces::make();
  constexpr size_t codes = 32 / kBits;  // of a word, where all words are alike
  for (size_t w = 0; w < round16(layout.words); ++w) {
    float* to = pieces + w / kLanes * kLanes * Pieces::kSlots + w % kLanes;
    if (w >= layout.words) {
      for (int s = 0; s < Pieces::kSlots; ++s) to[s * kLanes] = 0;
      continue;
    }
    const auto& word = table[w % Pieces::kPhases];
    const float* from = Pieces::kUniform ? x + w * codes : x + w / kBits * 32;
    for (int s = 0; s < Pieces::kSlots; ++s) to[s * kLanes] = word[s].mask ? from[word[s].code] * word[s].factor : 0.0f;
  }
  const DF d;
  for (size_t g = 0; g < round16(layout.groups); ++g) {
    if (g >= layout.groups) {
      sums[g] = 0;
      continue;
    }
    VF sum = hn::Zero(d);
    for (size_t i = 0; i < group; i += kLanes) sum = hn::Add(sum, hn::LoadU(d, x + g * group + i));
    sums[g] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// What DotBlock reads besides the weights.
struct Inputs {
  size_t words, groups;
  const int32_t *first, *lane;
  const float *pieces, *sums;  // of the first row of x
  size_t ldx;                  // floats from one row of x to the next, in pieces and in sums
};

// Adds one vector of words of kR weight rows times kM rows of x. D is the full vector or, for short ends of rows, its half; the
// tables are laid out for full vectors either way.
template <int kBits, size_t kR, size_t kM, class D>
HWY_INLINE void DotStep(D d, const hn::Vec<hn::Repartition<uint32_t, D>> (&words)[kR], const Inputs& in, size_t v, size_t phase,
                        const float* scales, hn::Vec<D> (&acc)[kR][kM]) {
  using Pieces = CodePieces<kBits>;
  const hn::Repartition<uint32_t, D> du;
  const hn::Repartition<int32_t, D> di;
  hn::Vec<D> sum[kR][kM];
  const float* x = in.pieces + v * Pieces::kSlots * kLanes;
#pragma GCC unroll 16
  for (int s = 0; s < Pieces::kSlots; ++s) {
    const bool top = s + 1 == Pieces::kSlots;
    hn::Vec<D> q[kR];
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) {
      auto code = top ? hn::ShiftRight<Pieces::kTopShift>(words[r]) : words[r];
      if (Pieces::kUniform) {
        if (!top) code = hn::And(code, hn::Set(du, ((1u << kBits) - 1) << (s * kBits % 32)));
      } else {
        code = hn::And(code, hn::Load(du, kMasks<kBits>.mask[phase][s]));
      }
      q[r] = hn::ConvertTo(d, hn::BitCast(di, code));
    }
#pragma GCC unroll 4
    for (size_t m = 0; m < kM; ++m) {
      const auto xv = hn::Load(d, x + m * in.ldx + s * kLanes);
#pragma GCC unroll 4
      for (size_t r = 0; r < kR; ++r) sum[r][m] = s ? hn::MulAdd(q[r], xv, sum[r][m]) : hn::Mul(q[r], xv);
    }
  }
  const auto lanes = hn::IndicesFromVec(d, hn::Load(di, in.lane + v * kLanes));
  const size_t first = static_cast<size_t>(in.first[v]);
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r) {
    const auto scale = hn::TableLookupLanes(hn::LoadU(d, scales + r * in.groups + first), lanes);
#pragma GCC unroll 4
    for (size_t m = 0; m < kM; ++m) acc[r][m] = hn::MulAdd(sum[r][m], scale, acc[r][m]);
  }
}

// The first n words at `from`, zeros behind them.
template <class D>
HWY_INLINE hn::Vec<D> LoadWords(D d, const uint32_t* from, size_t n) {
  if (n == hn::Lanes(d)) return hn::LoadU(d, from);
  if constexpr (kMaskedLoads) {
    return hn::MaskedLoad(hn::FirstN(d, n), d, from);
  } else {
    alignas(64) uint32_t words[kLanes] = {};
    for (size_t i = 0; i < n; ++i) words[i] = from[i];
    return hn::Load(d, words);
  }
}

// The end of each row, fewer words than a vector holds: in half a vector where that is enough and vectors are long.
template <int kBits, size_t kR, size_t kM>
HWY_INLINE void DotTail(const uint32_t* HWY_RESTRICT weight, size_t rest, const Inputs& in, size_t v, size_t phase,
                        const float* HWY_RESTRICT scales, VF (&acc)[kR][kM]) {
  const DF d;
  if constexpr (kLanes == 16) {
    if (rest <= kLanes / 2) {
      const hn::Half<DF> half;
      hn::Vec<hn::Half<DU>> words[kR];
      hn::Vec<hn::Half<DF>> sums[kR][kM];
#pragma GCC unroll 4
      for (size_t r = 0; r < kR; ++r) {
        words[r] = LoadWords(hn::Half<DU>(), weight + r * in.words + v * kLanes, rest);
#pragma GCC unroll 4
        for (size_t m = 0; m < kM; ++m) sums[r][m] = hn::Zero(half);
      }
      DotStep<kBits, kR, kM>(half, words, in, v, phase, scales, sums);
#pragma GCC unroll 4
      for (size_t r = 0; r < kR; ++r)
#pragma GCC unroll 4
        for (size_t m = 0; m < kM; ++m) acc[r][m] = hn::Add(acc[r][m], hn::ZeroExtendVector(d, sums[r][m]));
      return;
    }
  }
  VU words[kR];
  for (size_t r = 0; r < kR; ++r) words[r] = LoadWords(DU(), weight + r * in.words + v * kLanes, rest);
  DotStep<kBits, kR, kM>(d, words, in, v, phase, scales, acc);
}

// The sum of v's 128-bit blocks, in the first one.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SumOfBlocks(D d, V v) {
  constexpr size_t lanes = hn::MaxLanes(D());
  if constexpr (lanes == 16) v = hn::Add(v, hn::ConcatUpperUpper(d, v, v));
  if constexpr (lanes >= 8) v = hn::Add(v, hn::SwapAdjacentBlocks(v));
  return v;
}

// The four sums over the lanes of a, b, c and d, to out[0..4).
HWY_INLINE void StoreFourSums(DF df, VF a, VF b, VF c, VF d, float* HWY_RESTRICT out) {
  const hn::Repartition<uint64_t, DF> d64;  // pairs of floats
  const VF ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, cd));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, cd));
  alignas(64) float sums[kLanes];  // a, b, c, d in every block
  hn::Store(SumOfBlocks(df, hn::Add(hn::BitCast(df, low), hn::BitCast(df, high))), df, sums);
  for (size_t i = 0; i < 4; ++i) out[i] = sums[i];
}

// out[m * ldo + r] = weight row r times x row m. `scales` and `biases` have in.groups floats a row and kLanes spare ones behind.
template <int kBits, size_t kR, size_t kM>
HWY_NOINLINE void DotBlock(const uint32_t* HWY_RESTRICT weight, const float* HWY_RESTRICT scales, const float* HWY_RESTRICT biases,
                           const Inputs& in, float* HWY_RESTRICT out, size_t ldo) {
  const DF d;
  const DU du;
  VF acc[kR][kM];
#pragma GCC unroll 4
  for (size_t r = 0; r < kR; ++r)
#pragma GCC unroll 4
    for (size_t m = 0; m < kM; ++m) acc[r][m] = hn::Zero(d);
  constexpr size_t phases = CodePieces<kBits>::kPhases;
  size_t v = 0, phase = 0;
  VU words[kR];
#pragma GCC unroll 1
  for (; (v + 1) * kLanes <= in.words; ++v, phase = phases > 1 ? (phase + kLanes) % phases : 0) {
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) {
      const uint32_t* at = weight + r * in.words + v * kLanes;
      hwy::Prefetch(at + 2 * kWeightRows * in.words);
      words[r] = hn::LoadU(du, at);
    }
    DotStep<kBits, kR, kM>(d, words, in, v, phase, scales, acc);
  }
  if (const size_t rest = in.words - v * kLanes; rest) DotTail<kBits, kR, kM>(weight, rest, in, v, phase, scales, acc);
#pragma GCC unroll 1
  for (size_t g = 0; g < in.groups; g += kLanes) {
    const auto valid = hn::FirstN(d, std::min(kLanes, in.groups - g));
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) {
      const VF bias = hn::IfThenElseZero(valid, hn::LoadU(d, biases + r * in.groups + g));
#pragma GCC unroll 4
      for (size_t m = 0; m < kM; ++m) acc[r][m] = hn::MulAdd(bias, hn::Load(d, in.sums + m * in.ldx + g), acc[r][m]);
    }
  }
#pragma GCC unroll 4
  for (size_t m = 0; m < kM; ++m) {
    if constexpr (kR == 4) {
      StoreFourSums(d, acc[0][m], acc[1][m], acc[2][m], acc[3][m], out + m * ldo);
    } else {
      for (size_t r = 0; r < kR; ++r) out[m * ldo + r] = hn::GetLane(hn::SumOfLanes(d, acc[r][m]));
    }
  }
}

// All rows of x, four, two or one at a time, with kR weight rows.
template <int kBits, size_t kR>
HWY_INLINE void DotRows(const uint32_t* weight, const float* scales, const float* biases, Inputs in, size_t rows, float* out, size_t ldo) {
  while (rows) {
    const size_t take = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
    if (take == 4) {
      constexpr size_t kHalf = kR > 2 ? 2 : kR;  // 4 x 4 sums and their accumulators would not fit the registers
      for (size_t r = 0; r < kR; r += kHalf)
        DotBlock<kBits, kHalf, 4>(weight + r * in.words, scales + r * in.groups, biases + r * in.groups, in, out + r, ldo);
    } else if (take == 2) {
      DotBlock<kBits, kR, 2>(weight, scales, biases, in, out, ldo);
    } else {
      DotBlock<kBits, kR, 1>(weight, scales, biases, in, out, ldo);
    }
    in.pieces += take * in.ldx, in.sums += take * in.ldx, out += take * ldo, rows -= take;
  }
}

HWY_INLINE void ToFloat(Dtype type, const void* from, size_t offset, float* to, size_t n) {
  switch (type) {
    case Dtype::f32: return RowToFloat<Dtype::f32>(static_cast<const float*>(from) + offset, to, n);
    case Dtype::f16: return RowToFloat<Dtype::f16>(static_cast<const uint16_t*>(from) + offset, to, n);
    case Dtype::bf16: return RowToFloat<Dtype::bf16>(static_cast<const uint16_t*>(from) + offset, to, n);
  }
}

template <int kBits>
void Quantized(const LinearMatrix& m, const float* prepared, size_t rows, size_t first, size_t count, float* out, size_t ldo,
               float* scratch) {
  const PreparedLayout layout(m, rows);
  const Inputs in{
      layout.words, layout.groups, layout.first(prepared), layout.lane(prepared), layout.pieces(prepared, 0), layout.sums(prepared, 0),
      layout.row};
  const size_t batch = scale_rows(layout.groups);
  float* const all_scales = scratch;
  float* const all_biases = scratch + round16(batch * layout.groups + 16);
  const auto* weight = static_cast<const uint32_t*>(m.weight) + first * layout.words;
  for (size_t done = 0; done < count; done += batch) {
    const size_t now = std::min(batch, count - done);
    ToFloat(m.scale_type, m.scales, (first + done) * layout.groups, all_scales, now * layout.groups);
    ToFloat(m.bias_type, m.biases, (first + done) * layout.groups, all_biases, now * layout.groups);
    for (size_t i = 0; i < now;) {
      const uint32_t* row = weight + (done + i) * layout.words;
      const float *scales = all_scales + i * layout.groups, *biases = all_biases + i * layout.groups;
      if (now - i >= kWeightRows) {
        DotRows<kBits, kWeightRows>(row, scales, biases, in, rows, out + done + i, ldo);
        i += kWeightRows;
      } else {
        DotRows<kBits, 1>(row, scales, biases, in, rows, out + done + i, ldo);
        ++i;
      }
    }
  }
}

// kR dense weight rows times kM rows of x; `in` numbers a row.
template <Dtype kType, size_t kR, size_t kM>
HWY_INLINE void DenseBlock(const void* weight, size_t offset, size_t in, const float* x, size_t ldx, float* out, size_t ldo) {
  const DF d;
  VF acc[kR][kM];
  for (size_t r = 0; r < kR; ++r)
    for (size_t m = 0; m < kM; ++m) acc[r][m] = hn::Zero(d);
  size_t i = 0;
#pragma GCC unroll 1
  for (; i + kLanes <= in; i += kLanes) {
    VF w[kR];
#pragma GCC unroll 4
    for (size_t r = 0; r < kR; ++r) w[r] = LoadAsFloat<kType>(d, weight, offset + r * in + i);
#pragma GCC unroll 4
    for (size_t m = 0; m < kM; ++m) {
      const VF xv = hn::LoadU(d, x + m * ldx + i);
#pragma GCC unroll 4
      for (size_t r = 0; r < kR; ++r) acc[r][m] = hn::MulAdd(w[r], xv, acc[r][m]);
    }
  }
  for (size_t r = 0; r < kR; ++r) {
    for (size_t m = 0; m < kM; ++m) {
      float sum = hn::GetLane(hn::SumOfLanes(d, acc[r][m]));
      for (size_t j = i; j < in; ++j) sum += convert::LoadOne<kType>(weight, offset + r * in + j) * x[m * ldx + j];
      out[m * ldo + r] = sum;
    }
  }
}

template <Dtype kType>
void Dense(const LinearMatrix& m, const float* prepared, size_t rows, size_t first, size_t count, float* out, size_t ldo) {
  const size_t ldx = round16(m.in);
  for (size_t i = 0; i < count;) {
    const size_t left = count - i, take = left >= kWeightRows ? kWeightRows : 1, offset = (first + i) * m.in;
    for (size_t r = 0; r < rows;) {
      const float* x = prepared + r * ldx;
      float* to = out + r * ldo + i;
      const size_t step = rows - r >= 2 ? 2 : 1;
      if (take == kWeightRows) {
        step == 2 ? DenseBlock<kType, kWeightRows, 2>(m.weight, offset, m.in, x, ldx, to, ldo)
                  : DenseBlock<kType, kWeightRows, 1>(m.weight, offset, m.in, x, ldx, to, ldo);
      } else {
        step == 2 ? DenseBlock<kType, 1, 2>(m.weight, offset, m.in, x, ldx, to, ldo)
                  : DenseBlock<kType, 1, 1>(m.weight, offset, m.in, x, ldx, to, ldo);
      }
      r += step;
    }
    i += take;
  }
}
}  // namespace few

void LinearPrepare(const LinearMatrix& m, Dtype x_type, const void* x, size_t rows, float* prepared) {
  const PreparedLayout layout(m, rows);
  if (!m.bits) {
    for (size_t r = 0; r < rows; ++r) few::ToFloat(x_type, x, r * m.in, prepared + r * layout.row, m.in);
    return;
  }
  auto* first = const_cast<int32_t*>(layout.first(prepared));
  auto* lane = const_cast<int32_t*>(layout.lane(prepared));
  const size_t words_of_group = layout.words / layout.groups;
  for (size_t w = 0, group = 0, within = 0; w < round16(layout.words); ++w) {
    if (w % few::kLanes == 0) first[w / few::kLanes] = static_cast<int32_t>(w < layout.words ? group : 0);
    lane[w] = w < layout.words ? static_cast<int32_t>(group) - first[w / few::kLanes] : 0;
    if (++within == words_of_group) ++group, within = 0;
  }
  float* row = prepared + layout.total - round16(m.in);
  for (size_t r = 0; r < rows; ++r) {
    few::ToFloat(x_type, x, r * m.in, row, m.in);
    auto* pieces = const_cast<float*>(layout.pieces(prepared, r));
    auto* sums = const_cast<float*>(layout.sums(prepared, r));
    const auto group = static_cast<size_t>(m.group);
    switch (m.bits) {
      case 2: few::PrepareRow<2>(layout, row, pieces, sums, group); break;
      case 3: few::PrepareRow<3>(layout, row, pieces, sums, group); break;
      case 4: few::PrepareRow<4>(layout, row, pieces, sums, group); break;
      case 5: few::PrepareRow<5>(layout, row, pieces, sums, group); break;
      case 6: few::PrepareRow<6>(layout, row, pieces, sums, group); break;
      default: few::PrepareRow<8>(layout, row, pieces, sums, group); break;
    }
  }
}

void LinearFewRows(const LinearMatrix& m, const float* prepared, size_t rows, size_t first, size_t count, float* out, size_t ldo,
                   float* scratch) {
  switch (m.bits) {
    case 2: return few::Quantized<2>(m, prepared, rows, first, count, out, ldo, scratch);
    case 3: return few::Quantized<3>(m, prepared, rows, first, count, out, ldo, scratch);
    case 4: return few::Quantized<4>(m, prepared, rows, first, count, out, ldo, scratch);
    case 5: return few::Quantized<5>(m, prepared, rows, first, count, out, ldo, scratch);
    case 6: return few::Quantized<6>(m, prepared, rows, first, count, out, ldo, scratch);
    case 8: return few::Quantized<8>(m, prepared, rows, first, count, out, ldo, scratch);
    default: break;
  }
  switch (m.weight_type) {
    case Dtype::f32: return few::Dense<Dtype::f32>(m, prepared, rows, first, count, out, ldo);
    case Dtype::f16: return few::Dense<Dtype::f16>(m, prepared, rows, first, count, out, ldo);
    case Dtype::bf16: return few::Dense<Dtype::bf16>(m, prepared, rows, first, count, out, ldo);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(LinearPrepare);
HWY_EXPORT(LinearFewRows);

size_t linear_prepared_size(const LinearMatrix& matrix, size_t rows) { return PreparedLayout(matrix, rows).total; }

void linear_prepare(const LinearMatrix& matrix, Dtype x_type, const void* x, size_t rows, float* prepared) {
  HWY_DYNAMIC_DISPATCH(LinearPrepare)(matrix, x_type, x, rows, prepared);
}

size_t linear_few_rows_scratch(const LinearMatrix& matrix) {
  if (!matrix.bits) return 0;
  const size_t groups = PreparedLayout(matrix, 1).groups;
  return 2 * round16(scale_rows(groups) * groups + 16);
}

void linear_few_rows(const LinearMatrix& matrix, const float* prepared, size_t rows, size_t first, size_t count, float* out, size_t ldo,
                     float* scratch) {
  HWY_DYNAMIC_DISPATCH(LinearFewRows)(matrix, prepared, rows, first, count, out, ldo, scratch);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
