// Codes of a compressed block as the bytes of vectors, from one or two bit planes (codec/layout.h).
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_CODES_INL_H_
#undef TERSOR_KERNELS_CPU_KV_CODES_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_CODES_INL_H_
#endif

#include <type_traits>

#include "codec/layout.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace codes {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::I;
using levels::VF;
using levels::VI;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr bool kCheapSelect = true;  // a bitwise select is one instruction
#else
constexpr bool kCheapSelect = false;
#endif

constexpr int kTokenQuads = codec::kTileTokens / 4;

// The widest plane comes first and holds the low bits: 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2.
constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }
constexpr int high_bits(int bits) { return bits - low_bits(bits); }
// Fields in a byte of the narrowest plane.
constexpr int most_fields(int bits) { return 8 / (high_bits(bits) ? high_bits(bits) : bits); }

HWY_INLINE VI LoadLanes(const uint8_t* row, size_t lane) {
  const hn::Repartition<uint8_t, I> bytes;
  return hn::BitCast(I(), hn::LoadU(bytes, row + lane * 4));
}
HWY_INLINE VI EveryByte(int mask) { return hn::Set(I(), static_cast<int>(0x01010101u * static_cast<unsigned>(mask))); }

// Moves field kField of kBits bits to bit kTo of its byte; other bits are whatever they are.
template <int kBits, int kField, int kTo>
HWY_INLINE VI Move(VI row) {
  constexpr int kShift = kField * kBits - kTo;
  if constexpr (kShift > 0)
    return hn::ShiftRight<kShift>(row);
  else if constexpr (kShift < 0)
    return hn::ShiftLeft<-kShift>(row);
  else
    return row;
}

// One plane's codes. Keys: quad of dims (of parity kParity), group of 16 tokens. Values: block of 16 dims, quad base + kInner of
// tokens, base a multiple of the fields in a byte.
template <int kBits, int kTo, int kGroup, int kParity>
HWY_INLINE VI KeyPlane(const uint8_t* plane, size_t quad, size_t lane) {
  constexpr int kFields = 8 / kBits;
  constexpr int kField = kBits == 1 ? kGroup + 4 * kParity : kGroup % kFields;
  const size_t row = kBits == 8 ? quad * 4 + kGroup : kBits == 4 ? quad * 2 + kGroup / 2 : kBits == 2 ? quad : quad / 2;
  return Move<kBits, kField, kTo>(LoadLanes(plane + row * codec::kRowBytes, lane));
}
template <int kBits, int kTo, int kInner>
HWY_INLINE VI ValuePlane(const uint8_t* plane, size_t dims, size_t base, size_t lane) {
  constexpr int kFields = 8 / kBits;
  const size_t row = dims * (kTokenQuads / kFields) + base / kFields + kInner / kFields;
  return Move<kBits, kInner % kFields, kTo>(LoadLanes(plane + row * codec::kRowBytes, lane));
}

// Codes in the low kBits bits of bytes. kClean: the other bits are zero.
template <int kBits, bool kClean>
HWY_INLINE VI Join(VI low, VI high) {
  constexpr int kLowMask = (1 << low_bits(kBits)) - 1, kMask = (1 << kBits) - 1;
  if constexpr (high_bits(kBits) == 0) {
    return kClean && kBits < 8 ? hn::And(low, EveryByte(kMask)) : low;
  } else if constexpr (kCheapSelect) {
    const VI joined = hn::IfVecThenElse(EveryByte(kLowMask), low, high);
    return kClean ? hn::And(joined, EveryByte(kMask)) : joined;
  } else {
    return hn::Or(hn::And(low, EveryByte(kLowMask)), hn::And(high, EveryByte(kMask - kLowMask)));
  }
}
template <int kBits, bool kClean, int kGroup, int kParity>
HWY_INLINE VI KeyCodes(const uint8_t* low, const uint8_t* high, size_t quad, size_t lane) {
  constexpr int kLow = low_bits(kBits), kHigh = high_bits(kBits);
  const VI first = KeyPlane<kLow, 0, kGroup, kParity>(low, quad, lane);
  if constexpr (kHigh)
    return Join<kBits, kClean>(first, KeyPlane<kHigh, kLow, kGroup, kParity>(high, quad, lane));
  else
    return Join<kBits, kClean>(first, first);
}
template <int kBits, bool kClean, int kInner>
HWY_INLINE VI ValueCodes(const uint8_t* low, const uint8_t* high, size_t dims, size_t base, size_t lane) {
  constexpr int kLow = low_bits(kBits), kHigh = high_bits(kBits);
  const VI first = ValuePlane<kLow, 0, kInner>(low, dims, base, lane);
  if constexpr (kHigh)
    return Join<kBits, kClean>(first, ValuePlane<kHigh, kLow, kInner>(high, dims, base, lane));
  else
    return Join<kBits, kClean>(first, first);
}

// Calls f with std::integral_constant<int, 0> ... <int, kCount - 1>.
template <int kCount, class Function>
HWY_INLINE void Unrolled(const Function& f) {
  if constexpr (kCount > 1) Unrolled<kCount - 1>(f);
  f(std::integral_constant<int, kCount - 1>());
}

}  // namespace codes
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
