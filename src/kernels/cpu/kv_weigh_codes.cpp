#include <algorithm>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_weigh_codes.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/cache_control.h"
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
  float step[kMostRows];    // of a code
  float offset[kMostRows];  // added to every output
};

// weights * factors (the norms, or one group's scales) of one row.
template <class Bytes>
HWY_INLINE void PrepareRow(const float* HWY_RESTRICT weights, const codec::Layout& layout, const float* HWY_RESTRICT factors, size_t r,
                           Weights& to) {
  const F d;
  constexpr size_t kVectors = kTile / hn::MaxLanes(F());
  const float* biases = factors + layout.groups * kTile;
  VF products[kVectors], top = hn::Zero(d), bias = hn::Zero(d);
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) {
    const VF w = hn::LoadU(d, weights + v * hn::Lanes(d));
    products[v] = hn::Mul(w, hn::LoadU(d, factors + v * hn::Lanes(d)));
    top = hn::Max(top, hn::Abs(products[v]));
    if constexpr (Bytes::kAffine) bias = hn::MulAdd(w, hn::LoadU(d, biases + v * hn::Lanes(d)), bias);
  }
  const Scale scale(hn::GetLane(hn::MaxOfLanes(d, top)));
  VI integers[kVectors], sum = hn::Zero(I());
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) {
    integers[v] = hn::NearestInt(hn::Mul(products[v], hn::Set(d, scale.inverse)));
    if constexpr (!Bytes::kAffine) sum = hn::Add(sum, integers[v]);
  }
  StoreTile(integers, to.words[r]);
  if constexpr (Bytes::kAffine) {
    to.step[r] = scale.step;
    to.offset[r] = hn::GetLane(hn::SumOfLanes(d, bias));
  } else {
    to.step[r] = scale.step * 2 * layout.codec->grid_step();
    to.offset[r] = -Bytes::kCentre * static_cast<float>(hn::GetLane(hn::SumOfLanes(I(), sum))) * to.step[r];
  }
}

template <class Bytes, size_t kRows>
HWY_NOINLINE void Prepare(const float* weights, const codec::Layout& layout, const float* factors, Weights& to) {
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) PrepareRow<Bytes>(weights + r * kTile, layout, factors, r, to);
}

// Adds kBlocks blocks of 16 dims, from block `first` on, to the outputs of kRows rows.
template <class Bytes, size_t kRows, size_t kBlocks>
HWY_NOINLINE void Weigh(const codec::Layout& layout, const uint8_t* block, const Bytes& bytes, const Weights& weights, size_t first,
                        float* HWY_RESTRICT outputs, size_t ld) {
  constexpr int kBits = Bytes::kCodeBits;
  constexpr int kStep = codes::most_fields(kBits);
  constexpr int kLinesAhead = kBits > 4 ? 2 : 1;
  const uint8_t *low = block + layout.planes[0].offset, *high = block + layout.planes[1].offset;
  const uint8_t* ahead = block + layout.block_bytes + first * kLinesAhead * kQuads / 2 * codec::kRowBytes;
  for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(F())) {
    Sums dots[kRows][kBlocks];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r)
      for (size_t b = 0; b < kBlocks; ++b) dots[r][b].clear();
#pragma GCC unroll 1
    for (size_t base = 0; base < kQuads; base += kStep) {
      codes::Unrolled<kStep>([&](auto inner) __attribute__((always_inline)) {
        for (int i = 0; i < kLinesAhead; ++i, ahead += codec::kRowBytes) hwy::Prefetch(ahead);
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
void WeighRun(const codec::Layout& layout, const uint8_t* block, const Bytes& bytes, const float* scalars, const float* weights,
              float* outputs, size_t ld) {
  const size_t blocks = layout.padded_dim / codec::kLanes, per_group = Bytes::kAffine ? layout.group / codec::kLanes : blocks;
  Weights prepared;
  for (size_t begin = 0; begin < blocks; begin += per_group, scalars += kTile) {
    Prepare<Bytes, kRows>(weights, layout, scalars, prepared);
    const size_t end = std::min(begin + per_group, blocks);
    size_t b = begin;
    for (; b + 2 <= end; b += 2) Weigh<Bytes, kRows, 2>(layout, block, bytes, prepared, b, outputs, ld);
    if (b < end) Weigh<Bytes, kRows, 1>(layout, block, bytes, prepared, b, outputs, ld);
  }
}

template <class Bytes>
void WeighRows(const codec::Layout& layout, const uint8_t* block, const float* scalars, const float* weights, size_t count, float* outputs,
               size_t ld) {
  const Bytes bytes(layout);
  for (size_t runs = (count + kMostRows - 1) / kMostRows; runs; --runs) {
    const size_t n = (count + runs - 1) / runs;
    switch (n) {
      case 1: WeighRun<Bytes, 1>(layout, block, bytes, scalars, weights, outputs, ld); break;
      case 2: WeighRun<Bytes, 2>(layout, block, bytes, scalars, weights, outputs, ld); break;
      case 3: WeighRun<Bytes, 3>(layout, block, bytes, scalars, weights, outputs, ld); break;
      default: WeighRun<Bytes, 4>(layout, block, bytes, scalars, weights, outputs, ld); break;
    }
    weights += n * kTile, outputs += n * ld, count -= n;
  }
}

}  // namespace weigh_codes

void WeighCodes(const codec::Layout& layout, const uint8_t* block, const float* weights, size_t count, float* scalars, float* outputs,
                size_t ld) {
  using namespace weigh_codes;
  DecodeScalars(layout, block, scalars);
  if (layout.family == codec::Family::turboquant) {
    switch (layout.bits) {
      case 1: return WeighRows<LevelBytes<1>>(layout, block, scalars, weights, count, outputs, ld);
      case 2: return WeighRows<LevelBytes<2>>(layout, block, scalars, weights, count, outputs, ld);
      case 3: return WeighRows<LevelBytes<3>>(layout, block, scalars, weights, count, outputs, ld);
      default: return WeighRows<LevelBytes<4>>(layout, block, scalars, weights, count, outputs, ld);
    }
  }
  switch (layout.bits) {
    case 2: return WeighRows<PlainBytes<2>>(layout, block, scalars, weights, count, outputs, ld);
    case 3: return WeighRows<PlainBytes<3>>(layout, block, scalars, weights, count, outputs, ld);
    case 4: return WeighRows<PlainBytes<4>>(layout, block, scalars, weights, count, outputs, ld);
    case 5: return WeighRows<PlainBytes<5>>(layout, block, scalars, weights, count, outputs, ld);
    case 6: return WeighRows<PlainBytes<6>>(layout, block, scalars, weights, count, outputs, ld);
    default: return WeighRows<PlainBytes<8>>(layout, block, scalars, weights, count, outputs, ld);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
