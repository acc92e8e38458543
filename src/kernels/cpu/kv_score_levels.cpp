// Scores from TurboQuant codes.
#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_score_levels.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS

void QuantiseRows(const float* rows, size_t ld, size_t count, size_t dim, CodeNumbers numbers, const IntegerRows& to) {
  using namespace integer;
  int32_t* words = to.words;
  for (size_t r = 0; r < count; ++r, rows += ld, words += dim / 2) {
    int32_t* const sums = to.sums + r * (dim / codec::kLanes);
    to.steps[r] =
        numbers == CodeNumbers::pairs ? Quantise<Words::pairs>(rows, dim, words, sums) : Quantise<kWordsOfBytes>(rows, dim, words, sums);
  }
}

void ScoreLevels(const codec::Layout& layout, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,
                 float* scores) {
  using namespace score_codes;
  DecodeScalars(layout, block, scalars);
  const Keys keys{layout, block, tokens, scalars};
  switch (layout.bits) {
    case 1: return ScoreRows<LevelBytes<1>>(keys, rows, count, scores);
    case 2: return ScoreRows<LevelBytes<2>>(keys, rows, count, scores);
    case 3: return ScoreRows<LevelBytes<3>>(keys, rows, count, scores);
    case 4: return ScoreRows<LevelBytes<4>>(keys, rows, count, scores);
    case 5: return ScoreRows<LevelPairs<5>>(keys, rows, count, scores);
    default: return ScoreRows<LevelPairs<6>>(keys, rows, count, scores);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
