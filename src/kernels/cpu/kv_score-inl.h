// Scores of quantised query rows with the codes of one block of keys.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_SCORE_INL_H_
#undef TERSOR_KERNELS_CPU_KV_SCORE_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_SCORE_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/kv_attend_parts.h"
#include "kernels/cpu/kv_code_maps-inl.h"
#include "kernels/cpu/kv_scalars-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace score_codes {
namespace hn = hwy::HWY_NAMESPACE;
using namespace integer;
constexpr size_t kTile = codec::kTileTokens;
constexpr int kPairTokens = 2 * codec::kLanes;

struct Keys {
  const codec::Layout& layout;
  const uint8_t* block;
  int tokens;
  const float* scalars;  // decoded: [64] norms, or [groups][64] scales and as many biases; by channel they are not looked at
};

// Rows of queries that share each decoded register.
struct Queries {
  const int32_t* words;
  const int32_t* sums;
  const float* steps;
};

// Sum of a row's integers over dims [begin, end), multiples of 16.
HWY_INLINE float SumOf(const int32_t* sums, size_t begin, size_t end) {
  int32_t sum = 0;
  for (size_t i = begin / codec::kLanes; i < end / codec::kLanes; ++i) sum += sums[i];
  return static_cast<float>(sum);
}

// What one row's sums over some dims add to the scores of 16 tokens.
template <class Map>
HWY_INLINE VF Finish(const typename Map::Dots::Sums& dots, float of_row, float step, const float* scalars, const codec::Layout& layout) {
  const VF total = hn::ConvertTo(F(), dots.total());
  if constexpr (kByChannel<Map>) return hn::Mul(total, hn::Set(F(), step));
  const VF scale = hn::LoadU(F(), scalars);
  if constexpr (Map::kAffine) {
    const VF bias = hn::LoadU(F(), scalars + layout.groups * kTile);
    return hn::Mul(hn::MulAdd(scale, total, hn::Mul(bias, hn::Set(F(), of_row))), hn::Set(F(), step));
  } else {
    const VF centred = hn::Sub(total, hn::Set(F(), Map::kCentre * of_row));
    return hn::Mul(centred, hn::Mul(scale, hn::Set(F(), step * 2 * layout.table->step)));
  }
}

// Scores of kRows rows with the tokens of two groups of 16 (those that share a byte in 4-bit planes). By channel they are added to what
// `scores` holds.
template <class Map, size_t kRows, int kPair>
HWY_INLINE void ScorePair(const Keys& k, const Map& map, const Queries& q, float* HWY_RESTRICT scores) {
  using Dots = typename Map::Dots;
  constexpr int kBits = Map::kCodeBits;
  const codec::Layout& layout = k.layout;
  const size_t dims = layout.padded_dim, quads = dims / 4;
  const size_t part = Map::kAffine ? std::min<size_t>(layout.group, Dots::kMostTerms) : Dots::kMostTerms;
  const uint8_t *low = k.block + layout.planes[0].offset, *high = k.block + layout.planes[1].offset;
  Ahead<kBits> ahead{low + layout.block_bytes + kPair * Ahead<kBits>::bytes(quads), layout.block_bytes};
  for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(F())) {
    for (size_t begin = 0; begin < dims; begin += part) {
      const size_t end = std::min(begin + part, dims);
      typename Dots::Sums dots[kRows][2];
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) dots[r][0].clear(), dots[r][1].clear();
#pragma GCC unroll 1
      for (size_t quad = begin / 4; quad < end / 4; quad += 2) {
        codes::Unrolled<2>([&](auto parity) __attribute__((always_inline)) {
          ahead.step();
          const size_t at = quad + parity;
          const typename Dots::Operand c0(map(codes::KeyCodes<kBits, Map::kClean, 2 * kPair, parity>(low, high, at, lane)));
          const typename Dots::Operand c1(map(codes::KeyCodes<kBits, Map::kClean, 2 * kPair + 1, parity>(low, high, at, lane)));
#pragma GCC unroll 4
          for (size_t r = 0; r < kRows; ++r) {
            const int32_t* words = q.words + r * (dims / 2);
            const VI w0 = Word<Dots::kWords, 0>(words, quads, at), w1 = Word<Dots::kWords, 1>(words, quads, at);
            dots[r][0].dot(c0, w0, w1);
            dots[r][1].dot(c1, w0, w1);
          }
        });
      }
      const float* scalars = k.scalars + (Map::kAffine ? begin / part * kTile : 0) + 2 * kPair * codec::kLanes + lane;
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        const float of_row = SumOf(q.sums + r * (dims / codec::kLanes), begin, end);
#pragma GCC unroll 2
        for (size_t i = 0; i < 2; ++i) {
          float* const to = scores + r * kTile + (2 * kPair + i) * codec::kLanes + lane;
          const VF score = Finish<Map>(dots[r][i], of_row, q.steps[r], scalars + i * codec::kLanes, layout);
          hn::StoreU(begin == 0 && !kByChannel<Map> ? score : hn::Add(score, hn::LoadU(F(), to)), F(), to);
        }
      }
    }
  }
}

template <class Map, size_t kRows>
HWY_NOINLINE void Score(const Keys& keys, const Map& map, const Queries& queries, float* scores) {
  ScorePair<Map, kRows, 0>(keys, map, queries, scores);
  if (keys.tokens > kPairTokens) ScorePair<Map, kRows, 1>(keys, map, queries, scores);
}

// Calls f(number of rows, queries, scores) for runs of up to four rows of nearly equal height.
template <class Function>
HWY_INLINE void InRuns(const codec::Layout& layout, const IntegerRows& rows, size_t count, float* scores, const Function& f) {
  const size_t dims = layout.padded_dim;
  Queries q{rows.words, rows.sums, rows.steps};
  for (size_t runs = (count + 3) / 4; runs; --runs) {
    const size_t n = (count + runs - 1) / runs;
    switch (n) {
      case 1: f(std::integral_constant<size_t, 1>(), q, scores); break;
      case 2: f(std::integral_constant<size_t, 2>(), q, scores); break;
      case 3: f(std::integral_constant<size_t, 3>(), q, scores); break;
      default: f(std::integral_constant<size_t, 4>(), q, scores); break;
    }
    q.words += n * dims / 2, q.sums += n * dims / codec::kLanes, q.steps += n;
    scores += n * kTile, count -= n;
  }
}

template <class Map>
void ScoreRows(const Keys& keys, const IntegerRows& rows, size_t count, float* scores) {
  const Map map(keys.layout);
  InRuns(
      keys.layout, rows, count,
      scores, [&](auto n, const Queries& q, float* to) __attribute__((always_inline)) { Score<Map, n>(keys, map, q, to); });
}

}  // namespace score_codes
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
