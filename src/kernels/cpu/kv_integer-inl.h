// Dot products of codes with numbers quantised to 16 bits, in exact 32-bit integers, the same on every target.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_INTEGER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_INTEGER_INL_H_
#undef TERSOR_KERNELS_CPU_KV_INTEGER_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_INTEGER_INL_H_
#endif

#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace integer {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::I;
using levels::VF;
using levels::VI;
using I16 = hn::Repartition<int16_t, I>;
using U16 = hn::RebindToUnsigned<I16>;

#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kByteDots = true;  // four products of unsigned and signed bytes a lane in one instruction
#else
constexpr bool kByteDots = false;
#endif

// Quantised numbers are at most this: high and low byte are both signed bytes (number = 256 * high + low).
constexpr int kTop = 127 * 256 + 127;

// How four quantised numbers become two 32-bit words. planes: their high bytes, their low bytes, as [2][quads], for products of bytes.
// pairs: numbers 0 and 2, numbers 1 and 3, as [quads][2], for products of 16-bit integers.
enum class Words { pairs, planes };
constexpr Words kWordsOfBytes = kByteDots ? Words::planes : Words::pairs;

template <Words kWords, int kWord>
HWY_INLINE VI Word(const int32_t* words, size_t quads, size_t quad) {
  return hn::Set(I(), words[kWords == Words::planes ? kWord * quads + quad : 2 * quad + kWord]);
}

// Numbers first, first + 1, ... of a row of 4 * quads.
template <Words kWords>
HWY_INLINE void StoreWords(VI numbers, int32_t* words, size_t quads, size_t first) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kWords == Words::planes) {
    uint8_t* const high = reinterpret_cast<uint8_t*>(words) + first;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(hn::ShiftRight<8>(hn::Add(numbers, hn::Set(I(), 128))).raw));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + 4 * quads), _mm512_cvtepi32_epi8(numbers.raw));
    return;
  }
#endif
  (void)quads;
  const hn::Rebind<int16_t, I> narrow;
  const hn::Repartition<uint8_t, decltype(narrow)> bytes;
  alignas(64) static constexpr uint8_t kOrder[32] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                                     0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const auto ordered = hn::TableLookupBytes(hn::DemoteTo(narrow, numbers), hn::BitCast(narrow, hn::LoadU(bytes, kOrder)));
  hn::StoreU(ordered, narrow, reinterpret_cast<int16_t*>(words) + first);
}

// Four 16-bit integers a lane: integers 0 and 2, integers 1 and 3.
struct Pairs {
  hn::Vec<I16> even, odd;
};
struct PairSums {
  VI a, b;
  HWY_INLINE void clear() { a = hn::Zero(I()), b = hn::Zero(I()); }
  HWY_INLINE void dot(const Pairs& x, VI word0, VI word1) {
#if HWY_TARGET == HWY_AVX3_DL
    a.raw = _mm512_dpwssd_epi32(a.raw, x.even.raw, word0.raw);
    b.raw = _mm512_dpwssd_epi32(b.raw, x.odd.raw, word1.raw);
#else
    a = hn::ReorderWidenMulAccumulate(I(), x.even, hn::BitCast(I16(), word0), a, b);
    a = hn::ReorderWidenMulAccumulate(I(), x.odd, hn::BitCast(I16(), word1), a, b);
#endif
  }
  HWY_INLINE VI total() const { return kByteDots ? hn::Add(a, b) : hn::RearrangeToOddPlusEven(a, b); }
};

// Products of 16-bit integers from -512 to 511: sums of 128 stay below 2^31 (128 * 512 * 32639).
struct PairDots {
  static constexpr Words kWords = Words::pairs;
  static constexpr size_t kMostTerms = 128;
  using Operand = Pairs;
  using Sums = PairSums;
};

// Products of bytes: sums of 256 stay below 2^31 (256 * 255 * 32639).
struct ByteDots {
  static constexpr Words kWords = kWordsOfBytes;
  static constexpr size_t kMostTerms = 256;
#if HWY_TARGET == HWY_AVX3_DL
  struct Operand {
    VI bytes;
  };
  static HWY_INLINE Operand operand(VI bytes) { return {bytes}; }
  struct Sums {
    VI a, b;
    HWY_INLINE void clear() { a = hn::Zero(I()), b = hn::Zero(I()); }
    HWY_INLINE void dot(const Operand& x, VI high, VI low) {
      a.raw = _mm512_dpbusd_epi32(a.raw, x.bytes.raw, high.raw);
      b.raw = _mm512_dpbusd_epi32(b.raw, x.bytes.raw, low.raw);
    }
    HWY_INLINE VI total() const { return hn::Add(hn::ShiftLeft<8>(a), b); }
  };
#else
  using Operand = Pairs;
  using Sums = PairSums;
  static HWY_INLINE Operand operand(VI bytes) {
    return {hn::And(hn::BitCast(I16(), bytes), hn::Set(I16(), 0xff)), hn::BitCast(I16(), hn::ShiftRight<8>(hn::BitCast(U16(), bytes)))};
  }
#endif
};

// The words of 64 numbers.
template <Words kWords, size_t kVectors>
HWY_INLINE void StoreTile(const VI (&numbers)[kVectors], int32_t* words) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kWords == Words::planes) {
    const __m512i a = _mm512_packs_epi32(numbers[0].raw, numbers[1].raw), b = _mm512_packs_epi32(numbers[2].raw, numbers[3].raw);
    const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
    const __m512i high =
        _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8), _mm512_srai_epi16(_mm512_add_epi16(b, half), 8));
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    // Packing interleaves the vectors' 128-bit parts: lane 4 i + v holds quad i of vector v.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(words, _mm512_permutexvar_epi32(order, high));
    _mm512_storeu_si512(words + codec::kLanes, _mm512_permutexvar_epi32(order, low));
    return;
  }
#endif
  for (size_t v = 0; v < kVectors; ++v) StoreWords<kWords>(numbers[v], words, codec::kTileTokens / 4, v * hn::Lanes(I()));
}

// How numbers up to `largest` in magnitude become integers: number = step * integer. Numbers too small to matter become 0.
struct Scale {
  float step, inverse;
  explicit HWY_INLINE Scale(float largest)
      : step(largest > 1e-30f ? largest / static_cast<float>(kTop) : 0.0f),
        inverse(largest > 1e-30f ? static_cast<float>(kTop) / largest : 0.0f) {}
};

// Quantises n floats (a multiple of 16) to words, with the sums of every 16 integers. Returns the step, NaN where a number is not finite.
template <Words kWords>
float Quantise(const float* numbers, size_t n, int32_t* words, int32_t* sums_of_16) {
  const F d;
  auto top = hn::Zero(d), odd = hn::Zero(d);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::LoadU(d, numbers + i);
    top = hn::Max(top, hn::Abs(x));
    odd = hn::MulAdd(x, hn::Zero(d), odd);
  }
  const bool finite = hn::AllTrue(d, hn::Eq(odd, hn::Zero(d)));
  const Scale scale(finite ? hn::GetLane(hn::MaxOfLanes(d, top)) : 0.0f);
  for (size_t i = 0; i < n; i += codec::kLanes) {
    auto sum = hn::Zero(I());
    for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(d)) {
      const auto x = finite ? hn::LoadU(d, numbers + i + lane) : hn::Zero(d);
      const auto integers = hn::NearestInt(hn::Mul(x, hn::Set(d, scale.inverse)));
      sum = hn::Add(sum, integers);
      StoreWords<kWords>(integers, words, n / 4, i + lane);
    }
    sums_of_16[i / codec::kLanes] = hn::GetLane(hn::SumOfLanes(I(), sum));
  }
  return finite ? scale.step : std::numeric_limits<float>::quiet_NaN();
}

// Fetches the block after the one that is read, a line or two for every step through it. Wide codes move more lines than can be on
// their way to L1, so their lines are called to L2 a block earlier.
template <int kBits>
struct Ahead {
  const uint8_t* at;
  size_t block_bytes;
  HWY_INLINE void step() {
    constexpr int kLines = kBits > 4 ? 2 : 1;
#pragma GCC unroll 2
    for (int i = 0; i < kLines; ++i, at += codec::kRowBytes) {
      hwy::Prefetch(at);
      if constexpr (kBits > 4) __builtin_prefetch(at + block_bytes, 0, 2);
    }
  }
  static constexpr size_t bytes(size_t steps) { return steps * (kBits > 4 ? 2 : 1) * codec::kRowBytes; }
};

}  // namespace integer
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
