// Scores from affine codes and e2m1.
#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_score_affine.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS

void ScoreAffine(const codec::Layout& layout, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,
                 float* scores) {
  using namespace score_codes;
  DecodeScalars(layout, block, scalars);
  const Keys keys{layout, block, tokens, scalars};
  if (layout.family == codec::Family::mxfp4) return ScoreRows<MicroBytes>(keys, rows, count, scores);
  switch (layout.bits) {
    case 2: return ScoreRows<PlainBytes<2>>(keys, rows, count, scores);
    case 3: return ScoreRows<PlainBytes<3>>(keys, rows, count, scores);
    case 4: return ScoreRows<PlainBytes<4>>(keys, rows, count, scores);
    case 5: return ScoreRows<PlainBytes<5>>(keys, rows, count, scores);
    case 6: return ScoreRows<PlainBytes<6>>(keys, rows, count, scores);
    default: return ScoreRows<PlainBytes<8>>(keys, rows, count, scores);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
