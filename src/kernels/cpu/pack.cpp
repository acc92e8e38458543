#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace pack {
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors of blocks of 16 codes. A block's two halves of 8 codes take kBits bytes each.
using D8 = hn::CappedTag<uint8_t, 64>;
using D16 = hn::Repartition<uint16_t, D8>;
using D32 = hn::Repartition<uint32_t, D8>;
using D64 = hn::Repartition<uint64_t, D8>;
using V8 = hn::Vec<D8>;
using Block = hn::FixedTag<uint8_t, 16>;
constexpr size_t kBlock = 16;
constexpr size_t kStep = hn::MaxLanes(D8());

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
  return hn::TableLookupBytesOr0(hn::BitCast(d8, all), hn::LoadDup128(d8, kBytes<kBits>.together));
}

template <int kBits>
HWY_INLINE V8 Part(V8 packed) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  const D64 d64;
  const auto x = hn::BitCast(d64, hn::TableLookupBytesOr0(packed, hn::LoadDup128(d8, kBytes<kBits>.apart)));
  const auto low64 = hn::And(x, hn::Set(d64, (uint64_t{1} << 4 * kBits) - 1));
  const auto y = hn::BitCast(d32, hn::Or(low64, hn::ShiftLeft<32>(hn::ShiftRight<4 * kBits>(x))));
  const auto low32 = hn::And(y, hn::Set(d32, (1u << 2 * kBits) - 1));
  const auto z = hn::BitCast(d16, hn::Or(low32, hn::ShiftLeft<16>(hn::ShiftRight<2 * kBits>(y))));
  const auto low16 = hn::And(z, hn::Set(d16, (1 << kBits) - 1));
  return hn::BitCast(d8, hn::Or(low16, hn::ShiftLeft<8>(hn::ShiftRight<kBits>(z))));
}

// The blocks of a vector at places `stride` bytes apart, lowest first: each is written over the unused end of the one before.
template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, size_t stride, uint8_t* to) {
  if constexpr (hn::MaxLanes(d) == kBlock) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), stride, to);
    StoreBlocks(half, hn::UpperHalf(half, v), stride, to + hn::MaxLanes(half) / kBlock * stride);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, size_t stride, const uint8_t* from) {
  if constexpr (hn::MaxLanes(d) == kBlock) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, stride, from + hn::MaxLanes(half) / kBlock * stride), LoadBlocks(half, stride, from));
  }
}

// How far a vector of kStep codes reaches in packed memory, its last block being read and written whole; and how far it advances.
template <int kBits>
constexpr size_t kReach = (kStep / kBlock - 1) * 2 * kBits + kBlock;
template <int kBits>
constexpr size_t kAdvance = kStep / 8 * kBits;

// Codes that do not cross bytes: kStep of them to kAdvance bytes and back. Masks are written and read as eight bytes, whatever their
// length.
constexpr bool within_bytes(int bits) { return bits == 1 || bits == 2 || bits == 4; }
template <int kBits>
constexpr size_t kReachWithin = kBits == 1 ? 8 : kAdvance<kBits>;

template <int kBits>
HWY_INLINE void PackWithin(V8 codes, uint8_t* packed) {
  const D8 d8;
  const D16 d16;
  const auto x = hn::And(codes, hn::Set(d8, static_cast<uint8_t>((1 << kBits) - 1)));
  if constexpr (kBits == 1) {
    hn::StoreMaskBits(d8, hn::Ne(x, hn::Zero(d8)), packed);
    return;
  }
  const hn::Rebind<uint8_t, D16> half;
  const auto lower = [](auto d, auto v) HWY_ATTR {  // the lower bytes of 16-bit lanes
    const hn::RebindToSigned<decltype(d)> wide;
    return hn::DemoteTo(hn::Rebind<uint8_t, decltype(d)>(), hn::BitCast(wide, hn::And(v, hn::Set(d, 0xff))));
  };
  const auto pairs = hn::BitCast(d16, x);
  const auto joined = lower(d16, hn::Or(pairs, hn::ShiftRight<8 - kBits>(pairs)));
  if constexpr (kBits == 4) {
    hn::StoreU(joined, half, packed);
  } else {
    const hn::Repartition<uint16_t, decltype(half)> halves;
    const hn::Rebind<uint8_t, decltype(halves)> quarter;
    const auto fours = hn::BitCast(halves, joined);
    hn::StoreU(lower(halves, hn::Or(fours, hn::ShiftRight<4>(fours))), quarter, packed);
  }
}
template <int kBits>
HWY_INLINE V8 UnpackWithin(const uint8_t* packed) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  if constexpr (kBits == 1) {
    return hn::IfThenElseZero(hn::LoadMaskBits(d8, packed), hn::Set(d8, 1));
  } else if constexpr (kBits == 2) {
    const auto x = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint8_t, D32>(), packed));
    const auto pairs = hn::And(hn::Or(x, hn::ShiftLeft<12>(x)), hn::Set(d32, 0x000f000fu));
    return hn::BitCast(d8, hn::And(hn::Or(pairs, hn::ShiftLeft<6>(pairs)), hn::Set(d32, 0x03030303u)));
  } else {
    const auto x = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<uint8_t, D16>(), packed));
    return hn::BitCast(d8, hn::And(hn::Or(x, hn::ShiftLeft<4>(x)), hn::Set(d16, 0x0f0f)));
  }
}

template <int kBits>
void PackRun(const uint8_t* codes, size_t n, uint8_t* packed) {
  const D8 d;
  uint8_t* const end = packed + packed_bytes(n, kBits);
  size_t i = 0;
  if constexpr (within_bytes(kBits))
    for (; i + kStep <= n && packed + kReachWithin<kBits> <= end; i += kStep, packed += kAdvance<kBits>)
      PackWithin<kBits>(hn::LoadU(d, codes + i), packed);
  for (; i + kStep <= n && packed + kReach<kBits> <= end; i += kStep, packed += kAdvance<kBits>)
    StoreBlocks(d, Join<kBits>(hn::LoadU(d, codes + i)), 2 * kBits, packed);
  for (; i < n; i += kStep) {  // near the end, where a whole vector would write too far
    HWY_ALIGN uint8_t some[kStep] = {}, joined[kReach<kBits>];
    std::memcpy(some, codes + i, std::min(kStep, n - i));
    StoreBlocks(d, Join<kBits>(hn::Load(d, some)), 2 * kBits, joined);
    const size_t bytes = std::min(kAdvance<kBits>, static_cast<size_t>(end - packed));
    std::memcpy(packed, joined, bytes);
    packed += bytes;
  }
  std::memset(packed, 0, static_cast<size_t>(end - packed));
}

template <int kBits>
void UnpackRun(const uint8_t* packed, size_t n, uint8_t* codes) {
  const D8 d;
  const uint8_t* const end = packed + packed_bytes(n, kBits);
  size_t i = 0;
  if constexpr (within_bytes(kBits))
    for (; i + kStep <= n && packed + kReachWithin<kBits> <= end; i += kStep, packed += kAdvance<kBits>)
      hn::StoreU(UnpackWithin<kBits>(packed), d, codes + i);
  for (; i + kStep <= n && packed + kReach<kBits> <= end; i += kStep, packed += kAdvance<kBits>)
    hn::StoreU(Part<kBits>(LoadBlocks(d, 2 * kBits, packed)), d, codes + i);
  for (; i < n; i += kStep) {
    HWY_ALIGN uint8_t some[kStep], joined[kReach<kBits>] = {};
    const size_t bytes = std::min(kAdvance<kBits>, static_cast<size_t>(end - packed));
    std::memcpy(joined, packed, bytes);
    hn::Store(Part<kBits>(LoadBlocks(d, 2 * kBits, joined)), d, some);
    std::memcpy(codes + i, some, std::min(kStep, n - i));
    packed += bytes;
  }
}

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DB = hn::Rebind<uint8_t, DF>;
constexpr int kMostLevels = 256;
constexpr int kMostRegisters = 4;

// A table of up to kRegisters vectors, held in them.
template <int kRegisters>
struct Table {
  hn::Vec<DF> part[kRegisters];

  HWY_INLINE hn::Vec<DF> Find(hn::Vec<DI> index) const {
    const DF d;
    const DI di;
    const int lanes = static_cast<int>(hn::Lanes(d));
    const auto lane = hn::IndicesFromVec(d, kRegisters == 1 ? index : hn::And(index, hn::Set(di, lanes - 1)));
    if constexpr (kRegisters == 1) return hn::TableLookupLanes(part[0], lane);
    const auto odd = hn::RebindMask(d, hn::TestBit(index, hn::Set(di, lanes)));
    const auto pair = [&](int i) {
      return hn::IfThenElse(odd, hn::TableLookupLanes(part[i + 1], lane), hn::TableLookupLanes(part[i], lane));
    };
    if constexpr (kRegisters == 2) return pair(0);
    return hn::IfThenElse(hn::RebindMask(d, hn::TestBit(index, hn::Set(di, 2 * lanes))), pair(kRegisters - 2), pair(0));
  }
};
template <int kRegisters>
HWY_INLINE Table<kRegisters> LoadTable(const float* from) {
  const DF d;
  Table<kRegisters> table;
  for (int i = 0; i < kRegisters; ++i) table.part[i] = hn::LoadU(d, from + static_cast<size_t>(i) * hn::Lanes(d));
  return table;
}

// Registers for a table of so many numbers, a power of two at most kMostRegisters.
HWY_INLINE int RegistersFor(int count) {
  const int lanes = static_cast<int>(hn::Lanes(DF()));
  return count <= lanes ? 1 : count <= 2 * lanes ? 2 : kMostRegisters;
}

// Thresholds as a search by halves wants them: 2^bits of them, infinite from the last one on. The first steps look at every 2^fine-th,
// which lie in registers; the last `fine` ones gather.
struct Thresholds {
  int bits = 1, fine = 0;
  HWY_ALIGN float all[kMostLevels], coarse[kMostLevels];

  Thresholds(const float* from, int count) {
    while (1 << bits < count) ++bits;
    while (1 << (bits - fine) > kMostRegisters * static_cast<int>(hn::Lanes(DF()))) ++fine;
    std::fill(std::copy(from, from + count - 1, all), all + kMostLevels, HUGE_VALF);
    std::fill(coarse, coarse + kMostLevels, HUGE_VALF);
    for (int i = 0; i + 1 < 1 << (bits - fine); ++i) coarse[i] = all[((i + 1) << fine) - 1];
  }
};

template <int kRegisters>
HWY_INLINE hn::Vec<DI> CountBelow(const Thresholds& t, const Table<kRegisters>& coarse, hn::Vec<DF> x) {
  const DF d;
  const DI di;
  auto at = hn::Zero(di);
  const auto add = [&](hn::Vec<DF> threshold, int step) {
    at = hn::Add(at, hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(threshold, x)), hn::Set(di, step)));
  };
  int step = 1 << (t.bits - 1);
  for (; step >> t.fine > 0; step /= 2) add(coarse.Find(hn::Add(hn::ShiftRightSame(at, t.fine), hn::Set(di, (step >> t.fine) - 1))), step);
  for (; step > 0; step /= 2) add(hn::GatherIndex(d, t.all, hn::Add(at, hn::Set(di, step - 1))), step);
  return at;
}

template <int kRegisters>
void QuantiseRun(const float* x, size_t n, const Thresholds& thresholds, uint8_t* codes) {
  const DF d;
  const DB db;
  const size_t lanes = hn::Lanes(d);
  const auto coarse = LoadTable<kRegisters>(thresholds.coarse);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::DemoteTo(db, CountBelow(thresholds, coarse, hn::LoadU(d, x + i))), db, codes + i);
  if (i == n) return;
  HWY_ALIGN float some[hn::MaxLanes(d)] = {};
  HWY_ALIGN uint8_t found[hn::MaxLanes(d)];
  std::memcpy(some, x + i, (n - i) * sizeof(float));
  hn::StoreU(hn::DemoteTo(db, CountBelow(thresholds, coarse, hn::Load(d, some))), db, found);
  std::memcpy(codes + i, found, n - i);
}

HWY_INLINE hn::Vec<DI> LoadCodes(const uint8_t* codes) { return hn::PromoteTo(DI(), hn::LoadU(DB(), codes)); }

template <int kRegisters>
void DequantiseRun(const uint8_t* codes, size_t n, const float* levels, int count, float* x) {
  const DF d;
  HWY_ALIGN float all[kMostLevels] = {};
  std::copy(levels, levels + count, all);
  const bool held = count <= kRegisters * static_cast<int>(hn::Lanes(d));
  const auto table = LoadTable<kRegisters>(all);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto index = LoadCodes(codes + i);
    hn::StoreU(held ? table.Find(index) : hn::GatherIndex(d, all, index), d, x + i);
  }
  for (; i < n; ++i) x[i] = all[codes[i]];
}

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
  std::copy_n(codes, n, packed);
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
  std::copy_n(packed, n, codes);
}

void QuantiseLevels(const float* x, size_t n, const float* thresholds, int count, uint8_t* codes) {
  const pack::Thresholds t(thresholds, count);
  switch (pack::RegistersFor(count)) {
    case 1: return pack::QuantiseRun<1>(x, n, t, codes);
    case 2: return pack::QuantiseRun<2>(x, n, t, codes);
    default: return pack::QuantiseRun<pack::kMostRegisters>(x, n, t, codes);
  }
}

void DequantiseLevels(const uint8_t* codes, size_t n, const float* levels, int count, float* x) {
  switch (pack::RegistersFor(count)) {
    case 1: return pack::DequantiseRun<1>(codes, n, levels, count, x);
    case 2: return pack::DequantiseRun<2>(codes, n, levels, count, x);
    default: return pack::DequantiseRun<pack::kMostRegisters>(codes, n, levels, count, x);
  }
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
