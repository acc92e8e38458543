// Linear layers for many rows of x: a panel of up to 64 weight rows is decoded to floats [k][64] and multiplied in register tiles.
#include <algorithm>

#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_many.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/tile_matmul-inl.h"

#ifndef TERSOR_KERNELS_CPU_LINEAR_MANY_ONCE_
#define TERSOR_KERNELS_CPU_LINEAR_MANY_ONCE_
namespace tersor::kernels {
// Depth of a decoded panel: 64 x 384 floats are 96 KiB, well inside a second-level cache beside the rows of x.
constexpr size_t kPanelDepth = 384;
}  // namespace tersor::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace many {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr size_t kLanes = hn::MaxLanes(DF());

// Code kCode of a unit of 32 codes whose words are `words`.
template <int kBits, int kCode>
HWY_INLINE VF DecodeCode(const VU (&words)[kBits]) {
  constexpr int start = kCode * kBits, word = start / 32, shift = start % 32;
  VU code = hn::ShiftRight<shift>(words[word]);
  if constexpr (shift + kBits > 32) code = hn::Or(code, hn::ShiftLeft<32 - shift>(words[word + 1]));
  if constexpr (shift + kBits != 32) code = hn::And(code, hn::Set(DU(), (1u << kBits) - 1));
  return hn::ConvertTo(DF(), hn::BitCast(DI(), code));
}

template <int kBits, int kCode>
HWY_INLINE void DecodeFrom(const VU (&words)[kBits], VF scale, VF bias, float* HWY_RESTRICT panel) {
  hn::Store(hn::MulAdd(DecodeCode<kBits, kCode>(words), scale, bias), DF(), panel + kCode * kLinearPanel);
  if constexpr (kCode < 31) DecodeFrom<kBits, kCode + 1>(words, scale, bias, panel);
}

// Element `at` of kLanes rows, `stride` numbers apart; lanes beyond `count` rows repeat the last row.
HWY_INLINE VF LoadColumn(Dtype type, const void* data, size_t at, size_t stride, size_t count) {
  const DF d;
  if (type == Dtype::f32) {
    alignas(64) float values[kLanes];
    for (size_t l = 0; l < kLanes; ++l) values[l] = static_cast<const float*>(data)[at + std::min(l, count - 1) * stride];
    return hn::Load(d, values);
  }
  alignas(64) uint16_t values[kLanes];
  for (size_t l = 0; l < kLanes; ++l) values[l] = static_cast<const uint16_t*>(data)[at + std::min(l, count - 1) * stride];
  return type == Dtype::f16 ? LoadAsFloat<Dtype::f16>(d, values, 0) : LoadAsFloat<Dtype::bf16>(d, values, 0);
}

// Codes [k, k + depth) of weight rows first .. first + count into panel[depth][kLinearPanel]; lanes are rows.
template <int kBits>
void DecodePanel(const LinearMatrix& m, size_t first, size_t count, size_t k, size_t depth, float* HWY_RESTRICT panel) {
  const size_t words_of_row = m.in * kBits / 32, groups = m.in / static_cast<size_t>(m.group);
  const DU du;
  const DI di;
  for (size_t column = 0; column < count; column += kLanes) {
    const size_t row = first + column, valid = std::min(kLanes, count - column);
    const auto* base = static_cast<const uint32_t*>(m.weight) + row * words_of_row;
    alignas(64) int32_t offsets[kLanes];
    for (size_t l = 0; l < kLanes; ++l) offsets[l] = static_cast<int32_t>(std::min(l, valid - 1) * words_of_row);
    const auto rows = hn::Load(di, offsets);
    for (size_t unit = 0; unit < depth; unit += 32) {
      const size_t group = (k + unit) / static_cast<size_t>(m.group);
      const VF scale = LoadColumn(m.scale_type, m.scales, row * groups + group, groups, valid);
      const VF bias = LoadColumn(m.bias_type, m.biases, row * groups + group, groups, valid);
      VU words[kBits];
#pragma GCC unroll 8
      for (int w = 0; w < kBits; ++w) words[w] = hn::GatherIndex(du, base + (k + unit) / 32 * kBits + w, rows);
      DecodeFrom<kBits, 0>(words, scale, bias, panel + unit * kLinearPanel + column);
    }
  }
}

// The same for dense weights: rows are converted a vector at a time and stored down the panel's columns.
template <Dtype kType>
void TransposePanel(const LinearMatrix& m, size_t first, size_t count, size_t k, size_t depth, float* HWY_RESTRICT panel) {
  const DF d;
  for (size_t column = 0; column < count; ++column) {
    const size_t at = (first + column) * m.in + k;
    size_t i = 0;
    for (; i + kLanes <= depth; i += kLanes) {
      alignas(64) float values[kLanes];
      hn::Store(LoadAsFloat<kType>(d, m.weight, at + i), d, values);
      for (size_t l = 0; l < kLanes; ++l) panel[(i + l) * kLinearPanel + column] = values[l];
    }
    for (; i < depth; ++i) panel[i * kLinearPanel + column] = convert::LoadOne<kType>(m.weight, at + i);
  }
}

void FillPanel(const LinearMatrix& m, size_t first, size_t count, size_t k, size_t depth, float* panel) {
  switch (m.bits) {
    case 2: return DecodePanel<2>(m, first, count, k, depth, panel);
    case 3: return DecodePanel<3>(m, first, count, k, depth, panel);
    case 4: return DecodePanel<4>(m, first, count, k, depth, panel);
    case 5: return DecodePanel<5>(m, first, count, k, depth, panel);
    case 6: return DecodePanel<6>(m, first, count, k, depth, panel);
    case 8: return DecodePanel<8>(m, first, count, k, depth, panel);
    default: break;
  }
  switch (m.weight_type) {
    case Dtype::f32: return TransposePanel<Dtype::f32>(m, first, count, k, depth, panel);
    case Dtype::f16: return TransposePanel<Dtype::f16>(m, first, count, k, depth, panel);
    case Dtype::bf16: return TransposePanel<Dtype::bf16>(m, first, count, k, depth, panel);
  }
}
}  // namespace many

void LinearManyRows(const LinearMatrix& m, const float* x, size_t ldx, size_t rows, size_t first, size_t count, float* out, size_t ldo,
                    float* scratch) {
  const size_t blocks = (m.in + kPanelDepth - 1) / kPanelDepth;
  const size_t depth = ((m.in + blocks - 1) / blocks + 31) & ~size_t{31};  // nearly equal blocks of whole units
  for (size_t k = 0; k < m.in; k += depth) {
    const size_t now = std::min(depth, m.in - k);
    many::FillPanel(m, first, count, k, now, scratch);
    if (k == 0) {
      TileMatMul<false>(x, ldx, scratch, kLinearPanel, out, ldo, rows, count, now);
    } else {
      TileMatMul<true>(x + k, ldx, scratch, kLinearPanel, out, ldo, rows, count, now);
    }
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(LinearManyRows);

size_t linear_many_rows_scratch(const LinearMatrix& matrix) { return kLinearPanel * std::min(kPanelDepth, (matrix.in + 31) & ~size_t{31}); }

void linear_many_rows(const LinearMatrix& matrix, const float* x, size_t ldx, size_t rows, size_t first, size_t count, float* out,
                      size_t ldo, float* scratch) {
  HWY_DYNAMIC_DISPATCH(LinearManyRows)(matrix, x, ldx, rows, first, count, out, ldo, scratch);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
