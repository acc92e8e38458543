// What codes stand for in dot products: bytes or 16-bit integers.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_CODE_MAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_CODE_MAPS_INL_H_
#undef TERSOR_KERNELS_CPU_KV_CODE_MAPS_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_CODE_MAPS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/kv_integer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace integer {

// Bytes that stand for affine codes: themselves.
template <int kBits>
struct PlainBytes {
  using Dots = ByteDots;
  static constexpr int kCodeBits = kBits;
  static constexpr bool kAffine = true, kClean = true;
  static constexpr float kCentre = ((1 << kBits) - 1) / 2.0f;
  explicit PlainBytes(const codec::Layout&) {}
  HWY_INLINE Dots::Operand operator()(VI codes) const { return Dots::operand(codes); }
};

// The same where scales and biases belong to channels: they are in the numbers that the bytes are multiplied with.
template <int kBits>
struct ChannelBytes : PlainBytes<kBits> {
  static constexpr bool kAffine = false;
  using PlainBytes<kBits>::PlainBytes;
};
template <class Map>
constexpr bool kByChannel = false;
template <int kBits>
constexpr bool kByChannel<ChannelBytes<kBits>> = true;

// Bytes looked up by codes of up to four bits.
struct ByteTable {
  using Dots = ByteDots;
  static constexpr bool kClean = !kByteDots;  // the 64-byte permute sees six bits; its table repeats, so the upper ones do not matter

  explicit ByteTable(const uint8_t (&bytes)[16]) : table(hn::BitCast(I(), hn::LoadDup128(hn::Repartition<uint8_t, I>(), bytes))) {}
  HWY_INLINE Dots::Operand operator()(VI codes) const {
#if HWY_TARGET == HWY_AVX3_DL
    return Dots::operand(VI{_mm512_permutexvar_epi8(codes.raw, table.raw)});
#else
    return Dots::operand(hn::TableLookupBytes(table, codes));
#endif
  }
  VI table;
};

// Bytes that stand for e2m1 codes: value = (byte - 12) / 2. The scalars of an mxfp4 block are decoded to match (kv_scalars-inl.h).
struct MicroBytes : ByteTable {
  static constexpr int kCodeBits = 4;
  static constexpr bool kAffine = true;
  static constexpr float kCentre = 12;
  alignas(16) static constexpr uint8_t kBytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  explicit MicroBytes(const codec::Layout&) : ByteTable(kBytes) {}
};

// Bytes that stand for TurboQuant levels: level = (byte - 127.5) * 2 * grid step.
template <int kBits>
struct LevelBytes : ByteTable {
  static constexpr int kCodeBits = kBits;
  static constexpr bool kAffine = false;
  static constexpr float kCentre = 127.5f;

  explicit LevelBytes(const codec::Layout& layout) : ByteTable(bytes_of(layout).bytes) {}

 private:
  struct Bytes {
    alignas(16) uint8_t bytes[16];
  };
  static Bytes bytes_of(const codec::Layout& layout) {
    Bytes b;
    const int16_t* grid = layout.table->grid.data();
    for (int i = 0; i < 16; ++i) b.bytes[i] = static_cast<uint8_t>((grid[i % (1 << kBits)] + 255) >> 1);
    return b;
  }
};

// 16-bit integers that stand for TurboQuant levels of 10 bits: level = (integer + 0.5) * 2 * grid step, half the odd number on the
// grid, rounded down. The grid is symmetric: integers n - 1 - i and i are complements.
template <int kBits>
class LevelPairs {
 public:
  using Dots = PairDots;
  static constexpr int kCodeBits = kBits;
  static constexpr bool kAffine = false;
  static constexpr float kCentre = -0.5f;
  static constexpr int kCount = 1 << kBits, kHalf = kCount / 2;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static constexpr bool kClean = false;  // permutes of words see five or six bits

  explicit LevelPairs(const codec::Layout& layout) {
    const int16_t* grid = layout.table->grid.data();
    low_ = _mm512_srai_epi16(_mm512_loadu_si512(grid), 1), high_ = _mm512_srai_epi16(_mm512_loadu_si512(grid + kCount - 32), 1);
  }
  HWY_INLINE Pairs operator()(VI codes) const { return {{look_up(codes.raw)}, {look_up(_mm512_srli_epi16(codes.raw, 8))}}; }

 private:
  HWY_INLINE __m512i look_up(__m512i at) const {
    if constexpr (kBits == 5) return _mm512_permutexvar_epi16(at, low_);
    return _mm512_permutex2var_epi16(low_, at, high_);
  }
  __m512i low_, high_;
#else
  static constexpr bool kClean = true;

  // Byte tables of the upper half; the lower half are complements.
  explicit LevelPairs(const codec::Layout& layout) {
    const hn::Full128<int16_t> words;
    const hn::Full64<uint8_t> bytes;
    const int16_t* grid = layout.table->grid.data() + kHalf;
    alignas(16) uint8_t low[16];
    size_t large = 0;
    for (int i = 0; i < kTables; ++i, grid += 16) {
      const auto a = hn::ShiftRight<1>(hn::LoadU(words, grid)), b = hn::ShiftRight<1>(hn::LoadU(words, grid + 8));
      const auto limit = hn::Set(words, 255);
      large += hn::CountTrue(words, hn::Gt(a, limit)) + hn::CountTrue(words, hn::Gt(b, limit));
      hn::Store(hn::DemoteTo(bytes, hn::And(a, limit)), bytes, low);
      hn::Store(hn::DemoteTo(bytes, hn::And(b, limit)), bytes, low + 8);
      low_[i] = hn::LoadDup128(U8(), low);
    }
    least_high_ = static_cast<int8_t>(kHalf - large);
  }
  HWY_INLINE Pairs operator()(VI lanes) const {
    const auto codes = hn::BitCast(I8(), lanes);
    const auto flip = hn::VecFromMask(I8(), hn::Lt(codes, hn::Set(I8(), kHalf)));
    const auto at = hn::And(hn::Xor(codes, flip), hn::Set(I8(), kHalf - 1));
    const auto high = hn::AndNot(hn::VecFromMask(I8(), hn::Lt(at, hn::Set(I8(), least_high_))), hn::Set(I8(), 1));
    const auto low_byte = hn::BitCast(I16(), hn::Xor(look_up(at), flip)), high_byte = hn::BitCast(I16(), hn::Xor(high, flip));
    const auto even = hn::OddEven(hn::BitCast(I8(), hn::ShiftLeft<8>(high_byte)), hn::BitCast(I8(), low_byte));
    const auto odd = hn::OddEven(hn::BitCast(I8(), high_byte), hn::BitCast(I8(), hn::ShiftRight<8>(hn::BitCast(U16(), low_byte))));
    return {hn::BitCast(I16(), even), hn::BitCast(I16(), odd)};
  }

 private:
  using I8 = hn::Repartition<int8_t, I>;
  using U8 = hn::Repartition<uint8_t, I>;
  static constexpr int kTables = kHalf / 16;

  HWY_INLINE hn::Vec<I8> look_up(hn::Vec<I8> at) const {
    if constexpr (kTables == 1) {
      return hn::BitCast(I8(), hn::TableLookupBytes(low_[0], hn::BitCast(U8(), at)));
    } else {  // an index whose top bit is set finds 0; others count modulo 16 on x86 and find 0 from 16 on on ARM
      constexpr int8_t kFirst = HWY_ARCH_ARM ? 0 : 0x70;
      const auto first = hn::TableLookupBytesOr0(low_[0], hn::BitCast(U8(), hn::Add(at, hn::Set(I8(), kFirst))));
      const auto second = hn::TableLookupBytesOr0(low_[1], hn::BitCast(U8(), hn::Sub(at, hn::Set(I8(), 16))));
      return hn::BitCast(I8(), hn::Or(first, second));
    }
  }
  hn::Vec<U8> low_[kTables];
  int8_t least_high_;  // entry from which the high byte is 1
#endif
};

}  // namespace integer
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
