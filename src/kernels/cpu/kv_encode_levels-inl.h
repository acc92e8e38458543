// Encoding into parts of levels: TurboQuant and what is made of it.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_ENCODE_LEVELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_ENCODE_LEVELS_INL_H_
#undef TERSOR_KERNELS_CPU_KV_ENCODE_LEVELS_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_ENCODE_LEVELS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "codec/levels.h"
#include "codec/scalar.h"
#include "codec/stored_map.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_encode_batch.h"
#include "kernels/cpu/kv_levels-inl.h"
#include "kernels/cpu/kv_rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace encode {
namespace hn = hwy::HWY_NAMESPACE;
using codec::ScalarRule;
using levels::F;
using levels::I;

constexpr size_t kBatch = kEncodeBatch;

inline void PutScalar(const codec::Layout& layout, const EncodeBatch& batch, size_t v, int row, uint16_t bits) {
  uint8_t* const at = batch.block[v] + layout.scalars_offset + (static_cast<size_t>(row) * codec::kTileTokens + batch.token[v]) * 2;
  *reinterpret_cast<uint16_t*>(at) = bits;
}

inline void StoreCodes(hn::Vec<I> codes, uint8_t* to) {
  const hn::Rebind<uint8_t, I> bytes;
  hn::StoreU(hn::DemoteTo(bytes, codes), bytes, to);
}

// Nearest levels of rows scaled to unit variance, and the sums that the stored scalar comes from.
template <int kBits>
void QuantiseLevels(const codec::Layout& layout, const float* x, uint8_t* codes, float* norm2, float* yc, float* cc) {
  const F d;
  const size_t dim = layout.dim;
  const levels::Table<kBits> table(layout.levels);
  HWY_ALIGN float tree[1 << kBits];
  levels::Search<kBits>::make_tree(layout.table->thresholds.data(), tree);
  const levels::Search<kBits> search(tree);
  for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
    auto sum = hn::Zero(d), product = hn::Zero(d), square = hn::Zero(d);
    for (size_t i = 0; i < dim; ++i) {
      const auto v = hn::Load(d, x + i * kBatch + lane);
      sum = hn::MulAdd(v, v, sum);
    }
    // Below this the stored scalar is 0; the quotient must not become infinite, or 0 would become NaN.
    const auto scale = hn::Sqrt(hn::Div(hn::Set(d, static_cast<float>(dim)), hn::Max(sum, hn::Set(d, 1e-30f))));
    for (size_t i = 0; i < dim; ++i) {
      const auto v = hn::Load(d, x + i * kBatch + lane), y = hn::Mul(v, scale);
      const auto code = search(y);
      const auto level = table(code);
      product = hn::MulAdd(v, level, product);
      square = hn::MulAdd(level, level, square);
      StoreCodes(code, codes + i * kBatch + lane);
    }
    hn::Store(sum, d, norm2 + lane);
    hn::Store(product, d, yc + lane);
    hn::Store(square, d, cc + lane);
  }
}

inline float LevelScalar(ScalarRule rule, float norm2, float yc, float cc, int numbers) {
  if (!(norm2 > 0 && yc > 0)) return 0;
  return rule == ScalarRule::unbiased        ? norm2 / yc
         : rule == ScalarRule::least_squares ? yc / cc
                                             : std::sqrt(norm2 / static_cast<float>(numbers));
}

// One part: x [part.dim][16]. stored: the scalars as they are decoded, unless null.
inline void QuantisePart(const codec::Layout& part, ScalarRule rule, const EncodeBatch& batch, const float* x, uint8_t* codes,
                         float* stored = nullptr) {
  HWY_ALIGN float norm2[kBatch], yc[kBatch], cc[kBatch];
  switch (part.bits) {
    case 1: QuantiseLevels<1>(part, x, codes, norm2, yc, cc); break;
    case 2: QuantiseLevels<2>(part, x, codes, norm2, yc, cc); break;
    case 3: QuantiseLevels<3>(part, x, codes, norm2, yc, cc); break;
    case 4: QuantiseLevels<4>(part, x, codes, norm2, yc, cc); break;
    case 5: QuantiseLevels<5>(part, x, codes, norm2, yc, cc); break;
    default: QuantiseLevels<6>(part, x, codes, norm2, yc, cc); break;
  }
  for (size_t v = 0; v < batch.count; ++v) {
    const uint16_t bits = codec::encode_norm(LevelScalar(rule, norm2[v], yc[v], cc[v], part.dim));
    PutScalar(part, batch, v, 0, bits);
    if (stored) stored[v] = codec::decode_norm(bits);
  }
}

// The nearest level of each number.
template <int kBits>
void NearestLevels(const codec::Layout& part, const float* x, uint8_t* codes, float* found) {
  const F d;
  const levels::Table<kBits> table(part.levels);
  HWY_ALIGN float tree[1 << kBits];
  levels::Search<kBits>::make_tree(part.table->thresholds.data(), tree);
  const levels::Search<kBits> search(tree);
  for (size_t i = 0; i < static_cast<size_t>(part.dim) * kBatch; i += hn::Lanes(d)) {
    const auto code = search(hn::Load(d, x + i));
    StoreCodes(code, codes + i);
    hn::Store(table(code), d, found + i);
  }
}
inline void NearestLevels(const codec::Layout& part, const float* x, uint8_t* codes, float* found) {
  switch (part.bits) {
    case 1: return NearestLevels<1>(part, x, codes, found);
    case 2: return NearestLevels<2>(part, x, codes, found);
    case 3: return NearestLevels<3>(part, x, codes, found);
    case 4: return NearestLevels<4>(part, x, codes, found);
    case 5: return NearestLevels<5>(part, x, codes, found);
    default: return NearestLevels<6>(part, x, codes, found);
  }
}

// Sums of squares of columns, over rows [0, dim).
inline void SquareSums(const float* x, size_t dim, float* sums) {
  const F d;
  for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < dim; ++i) {
      const auto v = hn::Load(d, x + i * kBatch + lane);
      sum = hn::MulAdd(v, v, sum);
    }
    hn::Store(sum, d, sums + lane);
  }
}

// Two stages of rotated numbers, chosen one after the other; codes: [2][dim][16]. scratch: two arrays of [dim][16].
inline void QuantiseStages(const codec::Layout& layout, const EncodeBatch& batch, const float* x, uint8_t* codes, float* scaled,
                           float* found) {
  const F d;
  const auto dim = static_cast<size_t>(layout.dim), numbers = dim * kBatch;
  HWY_ALIGN float norm2[kBatch], yc[kBatch] = {}, cc[kBatch] = {};
  SquareSums(x, dim, norm2);
  for (size_t i = 0; i < numbers; i += hn::Lanes(d)) {
    const auto sum = hn::Max(hn::Load(d, norm2 + i % kBatch), hn::Set(d, 1e-30f));
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Sqrt(hn::Div(hn::Set(d, static_cast<float>(dim)), sum))), d, scaled + i);
  }
  const auto add = [&] {
    for (size_t i = 0; i < numbers; i += hn::Lanes(d)) {
      float* const product = yc + i % kBatch;
      hn::Store(hn::MulAdd(hn::Load(d, x + i), hn::Load(d, found + i), hn::Load(d, product)), d, product);
    }
  };
  NearestLevels(layout.parts()[0], scaled, codes, found);
  add();
  if (layout.read_parts().size() == 1) SquareSums(found, dim, cc);
  for (size_t i = 0; i < numbers; i += hn::Lanes(d)) {  // what stage 1 leaves; then all that both stages took
    const auto y = hn::Load(d, scaled + i), first = hn::Load(d, found + i);
    hn::Store(hn::Sub(y, first), d, scaled + i);
  }
  HWY_ALIGN float second[codec::kMaxDim * kBatch];
  NearestLevels(layout.parts()[1], scaled, codes + numbers, second);
  if (layout.read_parts().size() == 2) {
    for (size_t i = 0; i < numbers; i += hn::Lanes(d)) {
      const auto both = hn::Add(hn::Load(d, found + i), hn::Load(d, second + i));
      hn::Store(hn::Load(d, second + i), d, found + i);
      hn::Store(both, d, second + i);
    }
    add();
    SquareSums(second, dim, cc);
  }
  const ScalarRule rule = codec::resolved(layout.codec->spec().scalar, layout.role);
  for (size_t v = 0; v < batch.count; ++v)
    PutScalar(layout, batch, v, 0, codec::encode_norm(LevelScalar(rule, norm2[v], yc[v], cc[v], layout.dim)));
}

// Rows [begin, begin + count) of a map M (dim -> stored) times x [dim][16].
inline void MapBatch(const codec::StoredMap& map, int64_t head, bool keys, size_t begin, size_t count, size_t dim, const float* x,
                     float* y) {
  constexpr size_t kRows = 4;
  const F d;
  const float* matrix = map.of_head(head);
  const size_t across = keys ? 1 : dim, along = keys ? static_cast<size_t>(map.out) : 1;  // keys' matrix is [dim][stored]
  for (size_t r = 0; r < count; r += kRows)
    for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
      hn::Vec<F> sums[kRows] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      const size_t rows = std::min(kRows, count - r);
      for (size_t i = 0; i < dim; ++i) {
        const auto v = hn::Load(d, x + i * kBatch + lane);
        const float* const weights = matrix + (begin + r) * across + i * along;
        for (size_t k = 0; k < rows; ++k) sums[k] = hn::MulAdd(v, hn::Set(d, weights[k * across]), sums[k]);
      }
      for (size_t k = 0; k < rows; ++k) hn::Store(sums[k], d, y + (r + k) * kBatch + lane);
    }
}

// Signs of a sketch's products y [part.dim][16] as codes, and the norms of what was sketched times its factor.
inline void QuantiseSigns(const codec::Layout& part, double factor, const EncodeBatch& batch, const float* y, const float* norm2,
                          uint8_t* codes) {
  for (size_t i = 0; i < static_cast<size_t>(part.dim) * kBatch; ++i) codes[i] = y[i] >= 0;
  for (size_t v = 0; v < batch.count; ++v)
    PutScalar(part, batch, v, 0, codec::encode_norm(static_cast<float>(std::sqrt(static_cast<double>(norm2[v])) * factor)));
}

}  // namespace encode
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
