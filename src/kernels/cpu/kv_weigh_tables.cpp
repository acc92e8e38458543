// Weighted sums of the values that codebook indices stand for: 64 tokens' numbers of one dimension at a time.
#include <type_traits>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_weigh_tables.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
#if HWY_TARGET == HWY_AVX3_DL
namespace tables {

constexpr size_t kTile = codec::kTileTokens, kMostRows = 4, kMostCodes = codec::kMaxDim / 2;
// A lane sums four products: 4 * 8191 * 32639 stays below 2^31.
constexpr float kMostNumber = 8191, kMostWeight = 32639;

template <size_t kEntries>
void MakeNumbers(const codec::Layout& layout, const float* columns, const IntegerBook& to) {
  const auto sub = static_cast<size_t>(layout.codec->spec().sub);
  const size_t count = size_t{1} << layout.bits;
  __m512 low = _mm512_set1_ps(columns[0]), high = low;
  for (size_t i = 0; i < sub * count; i += 16) {
    const __mmask16 present = Present(i, sub * count);
    const __m512 numbers = _mm512_maskz_loadu_ps(present, columns + i);
    low = _mm512_mask_min_ps(low, present, low, numbers), high = _mm512_mask_max_ps(high, present, high, numbers);
  }
  const float least = _mm512_reduce_min_ps(low), most = _mm512_reduce_max_ps(high), half = (most - least) / 2;
  to.scale[0] = half / kMostNumber, to.scale[1] = least + half;
  const __m512 inverse = _mm512_set1_ps(half > 0 ? kMostNumber / half : 0.0f), middle = _mm512_set1_ps(to.scale[1]);
  for (size_t i = 0; i < sub; ++i)
    for (size_t first = 0; first < count; first += 16) {
      const __m512 numbers = _mm512_maskz_loadu_ps(Present(first, count), columns + i * count + first);
      StoreEntries<kEntries>(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(numbers, middle), inverse)), to.bytes + i * 2 * kEntries,
                             first);
    }
}

// Rows of weights as 16-bit integers in the order of Entries.
struct Weights {
  alignas(64) int16_t integers[kMostRows][2][32];
  float step[kMostRows], sum[kMostRows];
};
HWY_INLINE void Prepare(const float* row, size_t r, Weights& to) {
  __m512 w[4], top = _mm512_setzero_ps(), sum = top;
  for (size_t v = 0; v < 4; ++v) {
    w[v] = _mm512_loadu_ps(row + 16 * v);
    top = _mm512_max_ps(top, w[v]), sum = _mm512_add_ps(sum, w[v]);
  }
  const float most = _mm512_reduce_max_ps(top);
  to.sum[r] = _mm512_reduce_add_ps(sum);
  to.step[r] = most > 1e-30f ? most / kMostWeight : 0.0f;
  const __m512 inverse = _mm512_set1_ps(most > 1e-30f ? kMostWeight / most : 0.0f);
  __m256i narrow[4];
  for (size_t v = 0; v < 4; ++v) narrow[v] = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(w[v], inverse)));
  for (size_t v = 0; v < 4; ++v) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to.integers[r][0] + 8 * v), _mm256_castsi256_si128(narrow[v]));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.integers[r][1] + 8 * v), _mm256_extracti128_si256(narrow[v], 1));
  }
}

// The sums of four vectors within each 128-bit part, side by side.
HWY_INLINE __m512 FoldFour(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
// The sums of the parts of four such vectors: 16 sums in order.
HWY_INLINE __m512 FoldParts(const __m512 (&v)[4]) {
  const auto pair = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return pair(pair(v[0], v[1]), pair(v[2], v[3]));
}

template <size_t kEntries, size_t kRows>
void WeighRun(const codec::Layout& layout, const __m512i* indices, const IntegerBook& book, const float* weights, float* outputs,
              size_t ld) {
  Weights prepared;
  for (size_t r = 0; r < kRows; ++r) Prepare(weights + r * kTile, r, prepared);
  const auto dim = static_cast<size_t>(layout.dim), sub = static_cast<size_t>(layout.codec->spec().sub);
  size_t j = 0, i = 0;  // of the next dimension
  for (size_t base = 0; base < dim; base += codec::kLanes) {
    __m512 parts[kRows][4];
#pragma GCC unroll 4
    for (size_t four = 0; four < 4; ++four) {
      __m512 sums[kRows][4];
#pragma GCC unroll 4
      for (size_t k = 0; k < 4; ++k) {
        if (base + 4 * four + k >= dim) {
          for (size_t r = 0; r < kRows; ++r) sums[r][k] = _mm512_setzero_ps();
          continue;
        }
        const __m512i index = indices[j];
        const Entries numbers = FindBoth<kEntries>(book.bytes + i * 2 * kEntries, index, _mm512_movepi8_mask(index));
        if (++i == sub) i = 0, ++j;
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          __m512i sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), numbers.first, _mm512_load_si512(prepared.integers[r][0]));
          sum = _mm512_dpwssd_epi32(sum, numbers.second, _mm512_load_si512(prepared.integers[r][1]));
          sums[r][k] = _mm512_cvtepi32_ps(sum);
        }
      }
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) parts[r][four] = FoldFour(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      float* const to = outputs + r * ld + base;
      const __m512 start = _mm512_add_ps(_mm512_loadu_ps(to), _mm512_set1_ps(prepared.sum[r] * book.scale[1]));
      _mm512_storeu_ps(to, _mm512_fmadd_ps(FoldParts(parts[r]), _mm512_set1_ps(prepared.step[r] * book.scale[0]), start));
    }
  }
}

}  // namespace tables

void MakeBook(const codec::Layout& layout, const float* columns, const IntegerBook& to) {
  tables::WithEntries(layout, [&](auto entries) { tables::MakeNumbers<entries>(layout, columns, to); });
}

void WeighTables(const codec::Layout& layout, const uint8_t* block, const IntegerBook& book, const float* weights, size_t count,
                 float* outputs, size_t ld) {
  __m512i indices[tables::kMostCodes];
  for (size_t j = 0; j < static_cast<size_t>(layout.codes); ++j) {
    indices[j] = tables::Indices(layout, block, j);
    __builtin_prefetch(block + layout.block_bytes + j * codec::kRowBytes);
  }
  tables::WithEntries(layout, [&](auto entries) {
    tables::InRuns(count, [&](auto n, size_t first) {
      tables::WeighRun<entries, n>(layout, indices, book, weights + first * tables::kTile, outputs + first * ld, ld);
    });
  });
}
#else
// Without tables nobody calls these.
void MakeBook(const codec::Layout&, const float*, const IntegerBook&) { HWY_ABORT("no tables"); }
void WeighTables(const codec::Layout&, const uint8_t*, const IntegerBook&, const float*, size_t, float*, size_t) { HWY_ABORT("no tables"); }
#endif

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
