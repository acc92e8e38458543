// Scores from codebook indices: sums of a query row's partial scores.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_score_tables.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/kv_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
#if HWY_TARGET == HWY_AVX3_DL
namespace tables {

// Scores of a sub-vector of a query, 16 centroids at a time: calls f(first centroid, their scores). columns: [sub][count]. kSub 0: any
// length.
template <size_t kSub, class Function>
HWY_INLINE void Partial(const float* columns, size_t count, size_t any_sub, const float* query, const Function& f) {
  const size_t sub = kSub ? kSub : any_sub;
  __m512 numbers[kSub ? kSub : 1];
#pragma GCC unroll 8
  for (size_t i = 0; i < kSub; ++i) numbers[i] = _mm512_set1_ps(query[i]);
  const auto number = [&](size_t i) __attribute__((always_inline)) { return kSub ? numbers[kSub ? i : 0] : _mm512_set1_ps(query[i]); };
  size_t first = 0;
  for (; first + 16 <= count; first += 16) {
    __m512 sum = _mm512_mul_ps(number(0), _mm512_loadu_ps(columns + first));
#pragma GCC unroll 8
    for (size_t i = 1; i < sub; ++i) sum = _mm512_fmadd_ps(number(i), _mm512_loadu_ps(columns + i * count + first), sum);
    f(first, sum);
  }
  if (first == count) return;
  __m512 sum = _mm512_setzero_ps();  // fewer centroids than lanes: the last ones repeat the first
  const __m512i lane = _mm512_and_si512(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                        _mm512_set1_epi32(static_cast<int>(count - 1)));
  for (size_t i = 0; i < sub; ++i) sum = _mm512_fmadd_ps(number(i), _mm512_i32gather_ps(lane, columns + i * count, 4), sum);
  f(first, sum);
}

template <size_t kEntries, size_t kSub>
void MakeRow(const codec::Layout& layout, const float* columns, const float* query, uint8_t* bytes, float& step, float& base) {
  const auto codes = static_cast<size_t>(layout.codes), sub = static_cast<size_t>(layout.codec->spec().sub);
  const size_t count = size_t{1} << layout.bits;
  float lows[codec::kMaxDim], range = 0;
  bool finite = true;
  base = 0;
  for (size_t j = 0; j < codes; ++j) {
    __m512 low = _mm512_set1_ps(std::numeric_limits<float>::infinity()), high = _mm512_sub_ps(_mm512_setzero_ps(), low);
    Partial<kSub>(
        columns, count, sub, query + j * sub, [&](size_t, __m512 scores) __attribute__((always_inline)) {
          low = _mm512_min_ps(low, scores), high = _mm512_max_ps(high, scores);
        });
    lows[j] = _mm512_reduce_min_ps(low);
    const float own = _mm512_reduce_max_ps(high) - lows[j];
    range = std::max(range, own), base += lows[j];
    finite = finite && own <= std::numeric_limits<float>::max();
  }
  constexpr float kMost = 65535;
  step = !finite ? std::numeric_limits<float>::quiet_NaN() : range > 1e-30f ? range / kMost : 0.0f;
  const __m512 inverse = _mm512_set1_ps(finite && range > 1e-30f ? kMost / range : 0.0f);
  for (size_t j = 0; j < codes; ++j, bytes += 2 * kEntries) {
    const __m512 start = _mm512_mul_ps(_mm512_set1_ps(-lows[j]), inverse);
    Partial<kSub>(
        columns, count, sub, query + j * sub, [&](size_t first, __m512 scores) __attribute__((always_inline)) {
          StoreEntries<kEntries>(_mm512_cvtps_epi32(_mm512_max_ps(_mm512_fmadd_ps(scores, inverse, start), _mm512_setzero_ps())), bytes,
                                 first);
        });
  }
}

template <size_t kEntries>
void MakeRow(const codec::Layout& layout, const float* columns, const float* query, uint8_t* bytes, float& step, float& base) {
  switch (layout.codec->spec().sub) {
    case 2: return MakeRow<kEntries, 2>(layout, columns, query, bytes, step, base);
    case 4: return MakeRow<kEntries, 4>(layout, columns, query, bytes, step, base);
    case 8: return MakeRow<kEntries, 8>(layout, columns, query, bytes, step, base);
    default: return MakeRow<kEntries, 0>(layout, columns, query, bytes, step, base);
  }
}

// Lanes 0, 16, 1, 17, ... of two vectors.
HWY_INLINE __m512i Alternating() { return _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }

template <size_t kEntries, size_t kRows>
void ScoreRun(const codec::Layout& layout, const uint8_t* block, const TableRows& rows, size_t first, float* scores) {
  const auto codes = static_cast<size_t>(layout.codes);
  const size_t row_bytes = table_row_bytes(layout);
  const uint8_t* const bytes = rows.bytes + first * row_bytes;
  const __m512i even = _mm512_set1_epi16(255);
  __m512i sums[kRows][2][2];  // of low and high bytes, of even and odd tokens
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r)
    for (auto& plane : sums[r]) plane[0] = plane[1] = _mm512_setzero_si512();
  for (size_t j = 0; j < codes; ++j) {
    const __m512i index = Indices(layout, block, j);
    const __mmask64 upper = _mm512_movepi8_mask(index);
    __builtin_prefetch(block + layout.block_bytes + j * codec::kRowBytes);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (size_t plane = 0; plane < 2; ++plane) {
        const __m512i found = Find<kEntries>(bytes + r * row_bytes + (2 * j + plane) * kEntries, index, upper);
        sums[r][plane][0] = _mm512_add_epi16(sums[r][plane][0], _mm512_and_si512(found, even));
        sums[r][plane][1] = _mm512_add_epi16(sums[r][plane][1], _mm512_srli_epi16(found, 8));
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 step = _mm512_set1_ps(rows.steps[first + r]), base = _mm512_set1_ps(rows.bases[first + r]);
    const auto store = [&](__m512i low_even, __m512i high_even, __m512i low_odd, __m512i high_odd, float* to)
        __attribute__((always_inline)) {
      const __m512i evens = _mm512_add_epi32(low_even, _mm512_slli_epi32(high_even, 8));
      const __m512i odds = _mm512_add_epi32(low_odd, _mm512_slli_epi32(high_odd, 8));
      for (int half = 0; half < 2; ++half) {
        const __m512i pairs = _mm512_add_epi32(_mm512_set1_epi32(8 * half), Alternating());
        const __m512i sum = _mm512_permutex2var_epi32(evens, pairs, odds);
        _mm512_storeu_ps(to + 16 * half, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), step, base));
      }
    };
    float* const to = scores + r * codec::kTileTokens;
    const auto lower = [](__m512i x) __attribute__((always_inline)) { return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)); };
    const auto upper = [](__m512i x) __attribute__((always_inline)) { return _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)); };
    const auto& [low, high] = sums[r];
    store(lower(low[0]), lower(high[0]), lower(low[1]), lower(high[1]), to);
    store(upper(low[0]), upper(high[0]), upper(low[1]), upper(high[1]), to + 32);
  }
}

}  // namespace tables

void MakeTables(const codec::Layout& layout, const float* columns, const float* rows, size_t ld, size_t count, const TableRows& to) {
  tables::WithEntries(layout, [&](auto entries) {
    for (size_t r = 0; r < count; ++r)
      tables::MakeRow<entries>(layout, columns, rows + r * ld, to.bytes + r * table_row_bytes(layout), to.steps[r], to.bases[r]);
  });
}

void ScoreTables(const codec::Layout& layout, const uint8_t* block, const TableRows& rows, size_t count, float* scores) {
  tables::WithEntries(layout, [&](auto entries) {
    tables::InRuns(count, [&](auto n, size_t first) {
      tables::ScoreRun<entries, n>(layout, block, rows, first, scores + first * codec::kTileTokens);
    });
  });
}
#else
// Without tables nobody calls these.
void MakeTables(const codec::Layout&, const float*, const float*, size_t, size_t, const TableRows&) { HWY_ABORT("no tables"); }
void ScoreTables(const codec::Layout&, const uint8_t*, const TableRows&, size_t, float*) { HWY_ABORT("no tables"); }
#endif

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
