// Weighted sums of the codes of one block of values.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_WEIGH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_WEIGH_INL_H_
#undef TERSOR_KERNELS_CPU_KV_WEIGH_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_WEIGH_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/kv_attend_parts.h"
#include "kernels/cpu/kv_code_maps-inl.h"
#include "kernels/cpu/kv_scalars-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace weigh_codes {
namespace hn = hwy::HWY_NAMESPACE;
using namespace integer;
constexpr size_t kTile = codec::kTileTokens;
constexpr size_t kQuads = kTile / 4;
constexpr size_t kMostRows = 4;

// Up to four rows of weights, quantised together with what multiplies a token's codes.
struct Weights {
  alignas(64) int32_t words[kMostRows][2 * kQuads];
  alignas(16) float step[kMostRows];    // of a code
  alignas(16) float offset[kMostRows];  // added to every output
};

using Four = hn::CappedTag<float, 4>;
using VFour = hn::Vec<Four>;

// Folds a vector to four lanes.
template <class D, class V, class Op>
HWY_INLINE VFour Fold(D, V v, const Op& op) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return Fold(half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), op);
  }
}
// Folds four vectors, each to one lane of the result.
template <class Op>
HWY_INLINE VFour FoldRows(const VF (&rows)[kMostRows], const Op& op) {
  const Four d;
  const VFour a = Fold(F(), rows[0], op), b = Fold(F(), rows[1], op), c = Fold(F(), rows[2], op), e = Fold(F(), rows[3], op);
  const VFour ab = op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)),
              ce = op(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  return op(hn::ConcatLowerLower(d, ce, ab), hn::ConcatUpperUpper(d, ce, ab));
}

// What Prepare has to know about codes. Affine codes have biases, codes of levels a step that all share.
struct CodeFacts {
  float centre, unit;
};

// weights * factors (the norms, or one group's scales) of kRows rows.
template <bool kAffine, Words kWords, size_t kRows>
HWY_NOINLINE void Prepare(const float* HWY_RESTRICT weights, const CodeFacts& codes, const float* HWY_RESTRICT factors,
                          const float* HWY_RESTRICT biases, Weights& to) {
  const F d;
  const Four d4;
  constexpr size_t kVectors = kTile / hn::MaxLanes(F());
  VF products[kRows][kVectors], top[kMostRows], sum[kMostRows];
#pragma GCC unroll 4
  for (size_t r = 0; r < kMostRows; ++r) top[r] = sum[r] = hn::Zero(d);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      const VF w = hn::LoadU(d, weights + r * kTile + v * hn::Lanes(d));
      products[r][v] = hn::Mul(w, hn::LoadU(d, factors + v * hn::Lanes(d)));
      top[r] = hn::Max(top[r], kAffine ? hn::Abs(products[r][v]) : products[r][v]);
      if constexpr (kAffine) {
        sum[r] = hn::MulAdd(w, hn::LoadU(d, biases + v * hn::Lanes(d)), sum[r]);
        sum[r] = hn::MulAdd(products[r][v], hn::Set(d, codes.centre), sum[r]);
      }
    }
  // Numbers too small to matter become 0.
  const VFour most = FoldRows(top, [](auto x, auto y) { return hn::Max(x, y); });
  const auto matters = hn::Gt(most, hn::Set(d4, 1e-30f));
  const VFour step = hn::IfThenElseZero(matters, hn::Mul(most, hn::Set(d4, 1.0f / kTop)));
  alignas(16) float inverse[kMostRows], steps[kMostRows];
  hn::Store(hn::IfThenElseZero(matters, hn::Div(hn::Set(d4, static_cast<float>(kTop)), most)), d4, inverse);
  hn::Store(step, d4, steps);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    VI integers[kVectors], total = hn::Zero(I());
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      integers[v] = hn::NearestInt(hn::Mul(products[r][v], hn::Set(d, inverse[r])));
      total = hn::Add(total, integers[v]);
    }
    StoreTile<kWords>(integers, to.words[r]);
    // Codes count from their centre, so that what rounding did to a weight is multiplied by numbers half as large.
    sum[r] = hn::NegMulAdd(hn::ConvertTo(d, total), hn::Set(d, codes.centre * steps[r]), sum[r]);
  }
  const VFour unit = hn::Set(d4, codes.unit);
  hn::Store(hn::Mul(step, unit), d4, to.step);
  hn::Store(hn::Mul(FoldRows(sum, [](auto x, auto y) { return hn::Add(x, y); }), unit), d4, to.offset);
}

struct Values {
  const codec::Layout& layout;
  const uint8_t* block;
  size_t quads;  // of tokens whose weights are not all 0
  const float* scalars;
};

// Adds two blocks of 16 dims, `first` and `second`, to the outputs of kRows rows. When both are the same, it counts once.
template <class Map, size_t kRows>
HWY_NOINLINE void Weigh(const Values& values, const Map& map, const Weights& weights, size_t first, size_t second,
                        float* HWY_RESTRICT outputs, size_t ld) {
  using Dots = typename Map::Dots;
  constexpr int kBits = Map::kCodeBits;
  constexpr int kStep = codes::most_fields(kBits);
  const codec::Layout& layout = values.layout;
  const uint8_t *low = values.block + layout.planes[0].offset, *high = values.block + layout.planes[1].offset;
  Ahead<kBits> ahead{low + layout.block_bytes + Ahead<kBits>::bytes(first / 2 * kQuads), layout.block_bytes};
  for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(F())) {
    typename Dots::Sums dots[kRows][2];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) dots[r][0].clear(), dots[r][1].clear();
#pragma GCC unroll 1
    for (size_t base = 0; base < values.quads; base += kStep) {
      codes::Unrolled<kStep>([&](auto inner) __attribute__((always_inline)) {
        ahead.step();
        const typename Dots::Operand c0(map(codes::ValueCodes<kBits, Map::kClean, inner>(low, high, first, base, lane)));
        const typename Dots::Operand c1(map(codes::ValueCodes<kBits, Map::kClean, inner>(low, high, second, base, lane)));
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const VI w0 = Word<Dots::kWords, 0>(weights.words[r], kQuads, base + inner);
          const VI w1 = Word<Dots::kWords, 1>(weights.words[r], kQuads, base + inner);
          dots[r][0].dot(c0, w0, w1);
          dots[r][1].dot(c1, w0, w1);
        }
      });
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const VF step = hn::Set(F(), weights.step[r]), offset = hn::Set(F(), weights.offset[r]);
      const auto add = [&](const auto& sums, size_t block) HWY_ATTR {
        float* const to = outputs + r * ld + block * codec::kLanes + lane;
        hn::StoreU(hn::Add(hn::LoadU(F(), to), hn::MulAdd(hn::ConvertTo(F(), sums.total()), step, offset)), F(), to);
      };
      add(dots[r][0], first);
      if (second != first) add(dots[r][1], second);
    }
  }
}

template <class Map, size_t kRows>
void WeighRun(const Values& values, const Map& map, const float* weights, float* outputs, size_t ld) {
  const codec::Layout& layout = values.layout;
  const float* scalars = values.scalars;
  const size_t blocks = layout.padded_dim / codec::kLanes, per_group = Map::kAffine ? layout.group / codec::kLanes : blocks;
  const CodeFacts facts{Map::kCentre, Map::kAffine ? 1.0f : 2 * layout.table->step};
  Weights prepared;
  for (size_t begin = 0; begin < blocks; begin += per_group, scalars += kTile) {
    Prepare<Map::kAffine, Map::Dots::kWords, kRows>(weights, facts, scalars, scalars + layout.groups * kTile, prepared);
    const size_t end = std::min(begin + per_group, blocks);
    for (size_t b = begin; b < end; b += 2) Weigh<Map, kRows>(values, map, prepared, b, std::min(b + 1, end - 1), outputs, ld);
  }
}

template <class Map>
void WeighRows(const Values& values, const float* weights, size_t count, float* outputs, size_t ld) {
  const Map map(values.layout);
  for (size_t runs = (count + kMostRows - 1) / kMostRows; runs; --runs) {
    const size_t n = (count + runs - 1) / runs;
    switch (n) {
      case 1: WeighRun<Map, 1>(values, map, weights, outputs, ld); break;
      case 2: WeighRun<Map, 2>(values, map, weights, outputs, ld); break;
      case 3: WeighRun<Map, 3>(values, map, weights, outputs, ld); break;
      default: WeighRun<Map, 4>(values, map, weights, outputs, ld); break;
    }
    weights += n * kTile, outputs += n * ld, count -= n;
  }
}

}  // namespace weigh_codes
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
