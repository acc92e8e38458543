#include <algorithm>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_weigh_codes.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_integer-inl.h"
#include "kernels/cpu/kv_scalars-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
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

// weights * factors (the norms, or one group's scales) of kRows rows.
template <class Bytes, size_t kRows>
HWY_NOINLINE void Prepare(const float* HWY_RESTRICT weights, const codec::Layout& layout, const float* HWY_RESTRICT factors, Weights& to) {
  const F d;
  const Four d4;
  constexpr size_t kVectors = kTile / hn::MaxLanes(F());
  const float* biases = factors + layout.groups * kTile;
  VF products[kRows][kVectors], top[kMostRows], sum[kMostRows];
#pragma GCC unroll 4
  for (size_t r = 0; r < kMostRows; ++r) top[r] = sum[r] = hn::Zero(d);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      const VF w = hn::LoadU(d, weights + r * kTile + v * hn::Lanes(d));
      products[r][v] = hn::Mul(w, hn::LoadU(d, factors + v * hn::Lanes(d)));
      top[r] = hn::Max(top[r], Bytes::kAffine ? hn::Abs(products[r][v]) : products[r][v]);
      if constexpr (Bytes::kAffine) {
        sum[r] = hn::MulAdd(w, hn::LoadU(d, biases + v * hn::Lanes(d)), sum[r]);
        sum[r] = hn::MulAdd(products[r][v], hn::Set(d, Bytes::kCentre), sum[r]);
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
    StoreTile(integers, to.words[r]);
    // Codes count from their centre, so that what rounding did to a weight is multiplied by numbers half as large.
    sum[r] = hn::NegMulAdd(hn::ConvertTo(d, total), hn::Set(d, Bytes::kCentre * steps[r]), sum[r]);
  }
  const VFour unit = hn::Set(d4, Bytes::kAffine ? 1.0f : 2 * layout.codec->grid_step());
  hn::Store(hn::Mul(step, unit), d4, to.step);
  hn::Store(hn::Mul(FoldRows(sum, [](auto x, auto y) { return hn::Add(x, y); }), unit), d4, to.offset);
}

struct Values {
  const codec::Layout& layout;
  const uint8_t* block;
  size_t quads;  // of tokens whose weights are not all 0
  const float* scalars;
};

// Adds kBlocks blocks of 16 dims, from block `first` on, to the outputs of kRows rows.
template <class Bytes, size_t kRows, size_t kBlocks>
HWY_NOINLINE void Weigh(const Values& values, const Bytes& bytes, const Weights& weights, size_t first, float* HWY_RESTRICT outputs,
                        size_t ld) {
  constexpr int kBits = Bytes::kCodeBits;
  constexpr int kStep = codes::most_fields(kBits);
  const codec::Layout& layout = values.layout;
  const uint8_t *low = values.block + layout.planes[0].offset, *high = values.block + layout.planes[1].offset;
  Ahead<kBits> ahead{values.block + layout.block_bytes + Ahead<kBits>::bytes(first / 2 * kQuads), layout.block_bytes};
  for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(F())) {
    Sums dots[kRows][kBlocks];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r)
      for (size_t b = 0; b < kBlocks; ++b) dots[r][b].clear();
#pragma GCC unroll 1
    for (size_t base = 0; base < values.quads; base += kStep) {
      codes::Unrolled<kStep>([&](auto inner) __attribute__((always_inline)) {
        ahead.step();
        const Operand c0(bytes(codes::ValueCodes<kBits, Bytes::kClean, inner>(low, high, first, base, lane)));
        const Operand c1(bytes(codes::ValueCodes<kBits, Bytes::kClean, inner>(low, high, first + kBlocks - 1, base, lane)));
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const VI w0 = Word<0>(weights.words[r], kQuads, base + inner), w1 = Word<1>(weights.words[r], kQuads, base + inner);
          dots[r][0].dot(c0, w0, w1);
          if constexpr (kBlocks > 1) dots[r][1].dot(c1, w0, w1);
        }
      });
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const VF step = hn::Set(F(), weights.step[r]), offset = hn::Set(F(), weights.offset[r]);
#pragma GCC unroll 2
      for (size_t b = 0; b < kBlocks; ++b) {
        float* const to = outputs + r * ld + (first + b) * codec::kLanes + lane;
        hn::StoreU(hn::Add(hn::LoadU(F(), to), hn::MulAdd(hn::ConvertTo(F(), dots[r][b].total()), step, offset)), F(), to);
      }
    }
  }
}

template <class Bytes, size_t kRows>
void WeighRun(const Values& values, const Bytes& bytes, const float* weights, float* outputs, size_t ld) {
  const codec::Layout& layout = values.layout;
  const float* scalars = values.scalars;
  const size_t blocks = layout.padded_dim / codec::kLanes, per_group = Bytes::kAffine ? layout.group / codec::kLanes : blocks;
  Weights prepared;
  for (size_t begin = 0; begin < blocks; begin += per_group, scalars += kTile) {
    Prepare<Bytes, kRows>(weights, layout, scalars, prepared);
    const size_t end = std::min(begin + per_group, blocks);
    size_t b = begin;
    for (; b + 2 <= end; b += 2) Weigh<Bytes, kRows, 2>(values, bytes, prepared, b, outputs, ld);
    if (b < end) Weigh<Bytes, kRows, 1>(values, bytes, prepared, b, outputs, ld);
  }
}

template <class Bytes>
void WeighRows(const Values& values, const float* weights, size_t count, float* outputs, size_t ld) {
  const Bytes bytes(values.layout);
  for (size_t runs = (count + kMostRows - 1) / kMostRows; runs; --runs) {
    const size_t n = (count + runs - 1) / runs;
    switch (n) {
      case 1: WeighRun<Bytes, 1>(values, bytes, weights, outputs, ld); break;
      case 2: WeighRun<Bytes, 2>(values, bytes, weights, outputs, ld); break;
      case 3: WeighRun<Bytes, 3>(values, bytes, weights, outputs, ld); break;
      default: WeighRun<Bytes, 4>(values, bytes, weights, outputs, ld); break;
    }
    weights += n * kTile, outputs += n * ld, count -= n;
  }
}

}  // namespace weigh_codes

void WeighCodes(const codec::Layout& layout, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,
                float* outputs, size_t ld) {
  using namespace weigh_codes;
  DecodeScalars(layout, block, scalars);
  const Values values{layout, block, static_cast<size_t>(tokens + 3) / 4, scalars};
  if (layout.family == codec::Family::turboquant) {
    switch (layout.bits) {
      case 1: return WeighRows<LevelBytes<1>>(values, weights, count, outputs, ld);
      case 2: return WeighRows<LevelBytes<2>>(values, weights, count, outputs, ld);
      case 3: return WeighRows<LevelBytes<3>>(values, weights, count, outputs, ld);
      default: return WeighRows<LevelBytes<4>>(values, weights, count, outputs, ld);
    }
  }
  switch (layout.bits) {
    case 2: return WeighRows<PlainBytes<2>>(values, weights, count, outputs, ld);
    case 3: return WeighRows<PlainBytes<3>>(values, weights, count, outputs, ld);
    case 4: return WeighRows<PlainBytes<4>>(values, weights, count, outputs, ld);
    case 5: return WeighRows<PlainBytes<5>>(values, weights, count, outputs, ld);
    case 6: return WeighRows<PlainBytes<6>>(values, weights, count, outputs, ld);
    default: return WeighRows<PlainBytes<8>>(values, weights, count, outputs, ld);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
