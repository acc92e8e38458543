// Weighted sums of affine codes and e2m1.
#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_weigh_affine.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_weigh-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS

void WeighAffine(const codec::Layout& layout, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,
                 float* outputs, size_t ld) {
  using namespace weigh_codes;
  DecodeScalars(layout, block, scalars);
  const Values values{layout, block, static_cast<size_t>(tokens + 3) / 4, scalars};
  if (layout.family == codec::Family::mxfp4) return WeighRows<MicroBytes>(values, weights, count, outputs, ld);
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
