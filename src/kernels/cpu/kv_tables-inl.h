// Codebook indices of a block, looked up in tables that registers hold: AVX-512 with VBMI.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_TABLES_INL_H_
#undef TERSOR_KERNELS_CPU_KV_TABLES_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_TABLES_INL_H_
#endif

#include <type_traits>

#include "codec/layout.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_tables.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace tables {

#if HWY_TARGET == HWY_AVX3_DL
constexpr bool kHasTables = true;  // 64 lookups among 128 bytes are one instruction

// Fields of kBits bits of a plane's run for one code, in order of tokens.
template <int kBits>
HWY_INLINE __m512i Fields(const uint8_t* run) {
  if constexpr (kBits == 8) return _mm512_loadu_si512(run);
  // Byte t holds tokens t, t + 8 kBits, ...
  const __m512i all = kBits == 4   ? _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(run)))
                      : kBits == 2 ? _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(run)))
                                   : _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(run)));
  constexpr auto shift = [](int eighth) { return 0x0001000100010001ll * (eighth * 8 / (8 * kBits) * kBits); };
  const __m512i shifts = _mm512_setr_epi64(shift(0), shift(1), shift(2), shift(3), shift(4), shift(5), shift(6), shift(7));
  return _mm512_and_si512(_mm512_srlv_epi16(all, shifts), _mm512_set1_epi8((1 << kBits) - 1));
}

// The indices of code j of 64 tokens, in order.
HWY_INLINE __m512i Indices(const codec::Layout& layout, const uint8_t* block, size_t j) {
  __m512i all = _mm512_setzero_si512();
  for (int p = 0; p < layout.plane_count; ++p) {
    const codec::Plane& plane = layout.planes[p];
    const uint8_t* const run = block + plane.offset + j * 8 * static_cast<size_t>(plane.bits);
    const __m512i fields = plane.bits == 8   ? Fields<8>(run)
                           : plane.bits == 4 ? Fields<4>(run)
                           : plane.bits == 2 ? Fields<2>(run)
                                             : Fields<1>(run);
    all = _mm512_or_si512(all, _mm512_sll_epi16(fields, _mm_cvtsi32_si128(plane.shift)));  // stays within the byte
  }
  return all;
}

// One plane's bytes at 64 indices; upper: of those with bit 7.
template <size_t kEntries>
HWY_INLINE __m512i Find(const uint8_t* table, __m512i index, __mmask64 upper) {
  const __m512i first = _mm512_loadu_si512(table);
  if constexpr (kEntries == 64) return _mm512_permutexvar_epi8(index, first);
  const __m512i low = _mm512_permutex2var_epi8(first, index, _mm512_loadu_si512(table + 64));
  if constexpr (kEntries == 128) return low;
  const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), index, _mm512_loadu_si512(table + 192));
  return _mm512_mask_blend_epi8(upper, low, high);
}

// 16-bit entries at 64 indices: tokens 16 k ... 16 k + 7 of every k, then 16 k + 8 ... 16 k + 15.
struct Entries {
  __m512i first, second;
};
template <size_t kEntries>
HWY_INLINE Entries FindBoth(const uint8_t* table, __m512i index, __mmask64 upper) {
  const __m512i low = Find<kEntries>(table, index, upper), high = Find<kEntries>(table + kEntries, index, upper);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// Stores 16 integers' low and second bytes as entries from `at` on.
template <size_t kEntries>
HWY_INLINE void StoreEntries(__m512i integers, uint8_t* table, size_t at) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(table + at), _mm512_cvtepi32_epi8(integers));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(table + kEntries + at), _mm512_cvtepi32_epi8(_mm512_srli_epi32(integers, 8)));
}

// Centroids [first, first + 16) that there are.
HWY_INLINE __mmask16 Present(size_t first, size_t count) {
  return static_cast<__mmask16>(count - first >= 16 ? 0xffff : (1u << (count - first)) - 1);
}
#else
constexpr bool kHasTables = false;
#endif

// Calls f(number of rows, the first of them) for runs of up to four rows of nearly equal height.
template <class Function>
HWY_INLINE void InRuns(size_t count, const Function& f) {
  constexpr size_t kMost = 4;
  for (size_t first = 0, runs = (count + kMost - 1) / kMost; runs; --runs) {
    const size_t n = (count - first + runs - 1) / runs;
    switch (n) {
      case 1: f(std::integral_constant<size_t, 1>(), first); break;
      case 2: f(std::integral_constant<size_t, 2>(), first); break;
      case 3: f(std::integral_constant<size_t, 3>(), first); break;
      default: f(std::integral_constant<size_t, 4>(), first); break;
    }
    first += n;
  }
}

// Calls f(std::integral_constant of the layout's table_entries).
template <class Function>
HWY_INLINE void WithEntries(const codec::Layout& layout, const Function& f) {
  switch (table_entries(layout)) {
    case 64: return f(std::integral_constant<size_t, 64>());
    case 128: return f(std::integral_constant<size_t, 128>());
    default: return f(std::integral_constant<size_t, 256>());
  }
}

}  // namespace tables
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
