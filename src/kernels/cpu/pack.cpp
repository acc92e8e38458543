#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace pack {
namespace hn = hwy::HWY_NAMESPACE;

// 16 codes at a time, in two halves of 8, which take kBits bytes each.
constexpr size_t kStep = 16;
using D8 = hn::FixedTag<uint8_t, 16>;
using D16 = hn::FixedTag<uint16_t, 8>;
using D32 = hn::FixedTag<uint32_t, 4>;
using D64 = hn::FixedTag<uint64_t, 2>;
using V8 = hn::Vec<D8>;

// Where the bytes of both halves go: together, or 8 apart. 0x80 makes a zero.
template <int kBits>
struct Bytes {
  alignas(16) uint8_t together[16], apart[16];
  constexpr Bytes() : together(), apart() {
    for (int i = 0; i < 16; ++i) {
      together[i] = static_cast<uint8_t>(i < 2 * kBits ? i / kBits * 8 + i % kBits : 0x80);
      apart[i] = static_cast<uint8_t>(i % 8 < kBits ? i / 8 * kBits + i % 8 : 0x80);
    }
  }
};
template <int kBits>
constexpr Bytes<kBits> kBytes{};

// Neighbours join until a half is one run of bits: bytes to 16-bit lanes, those to 32, those to 64.
template <int kBits>
HWY_INLINE V8 Join(V8 codes) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  const D64 d64;
  const auto x = hn::BitCast(d16, hn::And(codes, hn::Set(d8, static_cast<uint8_t>((1 << kBits) - 1))));
  const auto low16 = hn::And(x, hn::Set(d16, 0xff));
  const auto y = hn::BitCast(d32, hn::Or(low16, hn::ShiftLeft<kBits>(hn::ShiftRight<8>(x))));
  const auto low32 = hn::And(y, hn::Set(d32, 0xffff));
  const auto z = hn::BitCast(d64, hn::Or(low32, hn::ShiftLeft<2 * kBits>(hn::ShiftRight<16>(y))));
  const auto low64 = hn::And(z, hn::Set(d64, 0xffffffffu));
  const auto all = hn::Or(low64, hn::ShiftLeft<4 * kBits>(hn::ShiftRight<32>(z)));
  return hn::TableLookupBytesOr0(hn::BitCast(d8, all), hn::Load(d8, kBytes<kBits>.together));
}

template <int kBits>
HWY_INLINE V8 Part(V8 packed) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  const D64 d64;
  const auto x = hn::BitCast(d64, hn::TableLookupBytesOr0(packed, hn::Load(d8, kBytes<kBits>.apart)));
  const auto low64 = hn::And(x, hn::Set(d64, (uint64_t{1} << 4 * kBits) - 1));
  const auto y = hn::BitCast(d32, hn::Or(low64, hn::ShiftLeft<32>(hn::ShiftRight<4 * kBits>(x))));
  const auto low32 = hn::And(y, hn::Set(d32, (1u << 2 * kBits) - 1));
  const auto z = hn::BitCast(d16, hn::Or(low32, hn::ShiftLeft<16>(hn::ShiftRight<2 * kBits>(y))));
  const auto low16 = hn::And(z, hn::Set(d16, (1 << kBits) - 1));
  return hn::BitCast(d8, hn::Or(low16, hn::ShiftLeft<8>(hn::ShiftRight<kBits>(z))));
}

template <int kBits>
void PackRun(const uint8_t* codes, size_t n, uint8_t* packed) {
  const D8 d;
  uint8_t* const end = packed + packed_bytes(n, kBits);
  size_t i = 0;
  for (; i + kStep <= n && packed + kStep <= end; i += kStep, packed += 2 * kBits)
    hn::StoreU(Join<kBits>(hn::LoadU(d, codes + i)), d, packed);
  for (; i < n; i += kStep) {  // near the end, where a whole vector would write too far
    alignas(16) uint8_t some[kStep] = {};
    std::memcpy(some, codes + i, std::min(kStep, n - i));
    hn::Store(Join<kBits>(hn::Load(d, some)), d, some);
    const size_t bytes = std::min<size_t>(2 * kBits, static_cast<size_t>(end - packed));
    std::memcpy(packed, some, bytes);
    packed += bytes;
  }
  std::memset(packed, 0, static_cast<size_t>(end - packed));
}

template <int kBits>
void UnpackRun(const uint8_t* packed, size_t n, uint8_t* codes) {
  const D8 d;
  const uint8_t* const end = packed + packed_bytes(n, kBits);
  size_t i = 0;
  for (; i + kStep <= n && packed + kStep <= end; i += kStep, packed += 2 * kBits)
    hn::StoreU(Part<kBits>(hn::LoadU(d, packed)), d, codes + i);
  for (; i < n; i += kStep) {
    alignas(16) uint8_t some[kStep] = {};
    const size_t bytes = std::min<size_t>(2 * kBits, static_cast<size_t>(end - packed));
    std::memcpy(some, packed, bytes);
    hn::Store(Part<kBits>(hn::Load(d, some)), d, some);
    std::memcpy(codes + i, some, std::min(kStep, n - i));
    packed += bytes;
  }
}

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DB = hn::Rebind<uint8_t, DF>;
constexpr int kFewLevels = 16;  // up to here every threshold is compared; more are searched by halves

HWY_INLINE hn::Vec<DI> CountBelow(hn::Vec<DF> x, const float* thresholds, int count) {
  const DF d;
  const DI di;
  auto below = hn::Zero(di);
  for (int i = 0; i + 1 < count; ++i) below = hn::Sub(below, hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(hn::Set(d, thresholds[i]), x))));
  return below;
}

// Halving steps over 2^k - 1 thresholds, those beyond the last one taken for infinite.
HWY_INLINE hn::Vec<DI> SearchBelow(hn::Vec<DF> x, const float* thresholds, int count) {
  const DF d;
  const DI di;
  const auto last = hn::Set(di, count - 2);
  auto at = hn::Zero(di);
  int step = 1;
  while (2 * step < count) step *= 2;
  for (; step > 0; step /= 2) {
    const auto place = hn::Add(at, hn::Set(di, step - 1));
    const auto above = hn::RebindMask(di, hn::Lt(hn::GatherIndex(d, thresholds, hn::Min(place, last)), x));
    at = hn::Add(at, hn::IfThenElseZero(hn::And(above, hn::Lt(place, hn::Set(di, count - 1))), hn::Set(di, step)));
  }
  return at;
}

template <bool kFew>
HWY_INLINE void QuantiseRun(const float* x, size_t n, const float* thresholds, int count, uint8_t* codes) {
  const DF d;
  const DB db;
  const size_t lanes = hn::Lanes(d);
  const auto below = [&](hn::Vec<DF> v) { return kFew ? CountBelow(v, thresholds, count) : SearchBelow(v, thresholds, count); };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::DemoteTo(db, below(hn::LoadU(d, x + i))), db, codes + i);
  if (i == n) return;
  HWY_ALIGN float some[hn::MaxLanes(d)] = {};
  HWY_ALIGN uint8_t found[hn::MaxLanes(d)];
  std::memcpy(some, x + i, (n - i) * sizeof(float));
  hn::StoreU(hn::DemoteTo(db, below(hn::Load(d, some))), db, found);
  std::memcpy(codes + i, found, n - i);
}

HWY_INLINE hn::Vec<DI> LoadCodes(const uint8_t* codes) { return hn::PromoteTo(DI(), hn::LoadU(DB(), codes)); }

}  // namespace pack

void PackCodes(const uint8_t* codes, size_t n, int bits, uint8_t* packed) {
  switch (bits) {
    case 1: return pack::PackRun<1>(codes, n, packed);
    case 2: return pack::PackRun<2>(codes, n, packed);
    case 3: return pack::PackRun<3>(codes, n, packed);
    case 4: return pack::PackRun<4>(codes, n, packed);
    case 5: return pack::PackRun<5>(codes, n, packed);
    case 6: return pack::PackRun<6>(codes, n, packed);
    case 7: return pack::PackRun<7>(codes, n, packed);
    default: break;
  }
  std::memcpy(packed, codes, n);
  std::memset(packed + n, 0, packed_bytes(n, 8) - n);
}

void UnpackCodes(const uint8_t* packed, size_t n, int bits, uint8_t* codes) {
  switch (bits) {
    case 1: return pack::UnpackRun<1>(packed, n, codes);
    case 2: return pack::UnpackRun<2>(packed, n, codes);
    case 3: return pack::UnpackRun<3>(packed, n, codes);
    case 4: return pack::UnpackRun<4>(packed, n, codes);
    case 5: return pack::UnpackRun<5>(packed, n, codes);
    case 6: return pack::UnpackRun<6>(packed, n, codes);
    case 7: return pack::UnpackRun<7>(packed, n, codes);
    default: break;
  }
  std::memcpy(codes, packed, n);
}

void QuantiseLevels(const float* x, size_t n, const float* thresholds, int count, uint8_t* codes) {
  if (count <= pack::kFewLevels) return pack::QuantiseRun<true>(x, n, thresholds, count, codes);
  pack::QuantiseRun<false>(x, n, thresholds, count, codes);
}

void DequantiseLevels(const uint8_t* codes, size_t n, const float* levels, int count, float* x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const pack::DF d;
  size_t i = 0;
  if (static_cast<size_t>(count) <= hn::Lanes(d)) {
    HWY_ALIGN float table[hn::MaxLanes(d)] = {};
    std::memcpy(table, levels, static_cast<size_t>(count) * sizeof(float));
    const auto all = hn::Load(d, table);
    for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
      hn::StoreU(hn::TableLookupLanes(all, hn::IndicesFromVec(d, pack::LoadCodes(codes + i))), d, x + i);
  } else {
    for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(hn::GatherIndex(d, levels, pack::LoadCodes(codes + i)), d, x + i);
  }
  for (; i < n; ++i) x[i] = levels[codes[i]];
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(PackCodes);
HWY_EXPORT(UnpackCodes);
HWY_EXPORT(QuantiseLevels);
HWY_EXPORT(DequantiseLevels);

void pack_codes(const uint8_t* codes, size_t n, int bits, uint8_t* packed) { HWY_DYNAMIC_DISPATCH(PackCodes)(codes, n, bits, packed); }
void unpack_codes(const uint8_t* packed, size_t n, int bits, uint8_t* codes) { HWY_DYNAMIC_DISPATCH(UnpackCodes)(packed, n, bits, codes); }
void quantise_levels(const float* x, size_t n, const float* thresholds, int count, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantiseLevels)(x, n, thresholds, count, codes);
}
void dequantise_levels(const uint8_t* codes, size_t n, const float* levels, int count, float* x) {
  HWY_DYNAMIC_DISPATCH(DequantiseLevels)(codes, n, levels, count, x);
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
