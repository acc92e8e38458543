// Scores from affine codes whose scales and biases belong to channels of groups of tokens.
#include <algorithm>
#include <limits>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_score_channels.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
namespace score_codes {

// <q, k> = sum of q * scale * code + sum of q * bias: the first factors become integers, the second sum what the scores start from. Codes
// count from their centre, so that what rounding did to a factor is multiplied by numbers half as large.
inline void Fold(const codec::Layout& layout, float centre, const float* row, const float* scales, int32_t* words, float* step,
                 float* scores) {
  const F d;
  const size_t dims = layout.padded_dim;
  const float* const biases = scales + dims;
  HWY_ALIGN float folded[codec::kMaxDim];
  auto start = hn::Zero(d), top = start, odd = start;
  for (size_t i = 0; i < dims; i += hn::Lanes(d)) {
    const auto q = hn::LoadU(d, row + i), factor = hn::Mul(q, hn::LoadU(d, scales + i));
    hn::Store(factor, d, folded + i);
    start = hn::MulAdd(q, hn::LoadU(d, biases + i), hn::MulAdd(factor, hn::Set(d, centre), start));
    top = hn::Max(top, hn::Abs(factor));
    odd = hn::MulAdd(factor, hn::Zero(d), odd);
  }
  const bool finite = hn::AllTrue(d, hn::Eq(odd, hn::Zero(d)));
  const Scale scale(finite ? hn::GetLane(hn::MaxOfLanes(d, top)) : 0.0f);
  auto total = hn::Zero(I());
  for (size_t i = 0; i < dims; i += hn::Lanes(d)) {
    const auto x = finite ? hn::Load(d, folded + i) : hn::Zero(d), integers = hn::Mul(x, hn::Set(d, scale.inverse));
    const auto rounded = hn::NearestInt(integers);
    total = hn::Add(total, rounded);
    StoreWords<kWordsOfBytes>(rounded, words, dims / 4, i);
  }
  *step = finite ? scale.step : std::numeric_limits<float>::quiet_NaN();
  start = hn::NegMulAdd(hn::ConvertTo(d, total), hn::Set(d, *step * centre), start);
  std::fill_n(scores, layout.group, hn::GetLane(hn::SumOfLanes(d, start)));
}

template <int kBits>
void ScoreGroups(const Keys& keys, const float* queries, size_t ld, const IntegerRows& rows, size_t count, float* scores) {
  using Map = ChannelBytes<kBits>;
  const codec::Layout& layout = keys.layout;
  const Map map(layout);
  const size_t dims = layout.padded_dim;
  const auto pair = [&](auto which) __attribute__((always_inline)) {
    constexpr int kFirst = which * kPairTokens;
    if (keys.tokens <= kFirst) return;
    if (kFirst % layout.group == 0)
      for (size_t r = 0; r < count; ++r)
        Fold(layout, Map::kCentre, queries + r * ld, keys.scalars + static_cast<size_t>(kFirst / layout.group) * 2 * dims,
             rows.words + r * dims / 2, rows.steps + r, scores + r * kTile + kFirst);
    InRuns(
        layout, rows, count,
        scores, [&](auto n, const Queries& q, float* to) __attribute__((always_inline)) { ScorePair<Map, n, which>(keys, map, q, to); });
  };
  pair(std::integral_constant<int, 0>());
  pair(std::integral_constant<int, 1>());
}

}  // namespace score_codes

void ScoreChannels(const codec::Layout& layout, const uint8_t* block, int tokens, const float* queries, size_t ld, size_t count,
                   const IntegerRows& scratch, float* scalars, float* scores) {
  using namespace score_codes;
  DecodeScalars(layout, block, scalars);
  const Keys keys{layout, block, tokens, scalars};
  switch (layout.bits) {
    case 2: return ScoreGroups<2>(keys, queries, ld, scratch, count, scores);
    case 3: return ScoreGroups<3>(keys, queries, ld, scratch, count, scores);
    case 4: return ScoreGroups<4>(keys, queries, ld, scratch, count, scores);
    case 5: return ScoreGroups<5>(keys, queries, ld, scratch, count, scores);
    case 6: return ScoreGroups<6>(keys, queries, ld, scratch, count, scores);
    default: return ScoreGroups<8>(keys, queries, ld, scratch, count, scores);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
