// Norms, scales and biases of a compressed block (codec/scalar.h) as floats.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_SCALARS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_SCALARS_INL_H_
#undef TERSOR_KERNELS_CPU_KV_SCALARS_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_SCALARS_INL_H_
#endif

#include "codec/layout.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Scalars of one part: [decoded_scalar_rows][64], by channel [groups of tokens][2][padded dim]. mxfp4: half of every scale, then what
/// belongs to codes that count from 12 halves below zero (kv_code_maps-inl.h).
inline void DecodeScalars(const codec::Layout& layout, const uint8_t* block, float* scalars) {
  namespace hn = hwy::HWY_NAMESPACE;
  using levels::F;
  if (layout.scalar_bytes() == 1) {  // exponents; 2^-127 is the one number that is not normal
    const hn::Rebind<uint8_t, F> bytes;
    const hn::RebindToSigned<F> wide;
    const int count = layout.scalar_rows * codec::kTileTokens;
    const bool halves = layout.family == codec::Family::mxfp4;
    for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(F()))) {
      const auto exponent = hn::PromoteTo(wide, hn::LoadU(bytes, block + layout.scalars_offset + i));
      const auto scale = hn::BitCast(F(), hn::Max(hn::ShiftLeft<23>(exponent), hn::Set(wide, 0x00400000)));
      hn::StoreU(halves ? hn::Mul(scale, hn::Set(F(), 0.5f)) : scale, F(), scalars + i);
      if (halves) hn::StoreU(hn::Mul(scale, hn::Set(F(), -6.0f)), F(), scalars + count + i);
    }
    return;
  }
  const uint16_t* stored = reinterpret_cast<const uint16_t*>(block + layout.scalars_offset);
  const hn::Rebind<uint16_t, F> narrow;
  const hn::RebindToUnsigned<F> wide;
  const bool norms = layout.has_norms();
  const auto count = static_cast<int>(layout.block_scalars());
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(F()))) {
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, stored + i));
    const auto rest = norms ? bits : hn::And(bits, hn::Set(wide, 0x7fffu));
    const auto shifted = norms ? hn::ShiftLeft<13>(bits) : hn::Or(hn::ShiftLeft<14>(rest), hn::ShiftLeft<16>(hn::AndNot(rest, bits)));
    const auto value = hn::Add(shifted, hn::Set(wide, codec::kScalarExponentShift));
    hn::StoreU(hn::BitCast(F(), hn::IfThenZeroElse(hn::Eq(rest, hn::Zero(wide)), value)), F(), scalars + i);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
