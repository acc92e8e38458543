// `full` caches in few rows: converted and multiplied on the way from memory.
#include <algorithm>

#include "kernels/cpu/kv_attend_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_full.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
TERSOR_KV_ATTEND_STEPS
namespace full {
namespace hn = hwy::HWY_NAMESPACE;
constexpr size_t kTile = codec::kTileTokens;
constexpr size_t kLine = 64;

// Rows and vectors whose sums fit the registers.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
constexpr size_t kMostVectors = 4;
#else
constexpr size_t kMostVectors = 2;
#endif
constexpr size_t kMostRows = 4;

// A tile is too large for two to stay in L1, so the next one is fetched to L2: measured a third faster than to L1.
HWY_INLINE void PrefetchToL2(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

// Scores of kRows rows with kVectors vectors of tokens; a vector lies within a block of kBlock tokens.
template <Dtype kType, size_t kBlock, size_t kRows, size_t kVectors>
HWY_NOINLINE void Score(const codec::Layout& layout, const uint8_t* blocks, size_t token, const float* HWY_RESTRICT rows, size_t ld,
                        float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, kBlock> d;
  using V = hn::Vec<decltype(d)>;
  const uint8_t* from[kVectors];
  const size_t tile_bytes = kTile / kBlock * layout.block_bytes;
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t t = token + v * hn::Lanes(d);
    from[v] = blocks + t / kBlock * layout.block_bytes + t % kBlock * size_of(kType);
  }
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
#pragma GCC unroll 1
  for (int i = 0; i < layout.dim; ++i) {
    V key[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      key[v] = LoadAsFloat<kType>(d, from[v], 0);
      PrefetchToL2(from[v] + tile_bytes);
      from[v] += kBlock * size_of(kType);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const V q = hn::Set(d, rows[r * ld + i]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(q, key[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r)
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, scores + r * kTile + token + v * hn::Lanes(d));
}

template <Dtype kType, size_t kBlock, size_t kRows>
void ScoreRun(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* rows, size_t ld, float* scores) {
  const size_t lanes = hn::Lanes(hn::CappedTag<float, kBlock>()), count = (tokens + lanes - 1) / lanes;
  size_t v = 0;
  for (; v + kMostVectors <= count; v += kMostVectors)
    Score<kType, kBlock, kRows, kMostVectors>(layout, blocks, v * lanes, rows, ld, scores);
  for (; v < count; ++v) Score<kType, kBlock, kRows, 1>(layout, blocks, v * lanes, rows, ld, scores);
}

// Infinities and NaN among values must not reach rows whose weight for them is zero.
template <Dtype kType>
void WeighCarefully(const uint8_t* values, size_t row, int tokens, const float* weights, size_t begin, size_t end, float* outputs) {
  for (int t = 0; t < tokens; ++t)
    if (weights[t] != 0)
      for (size_t i = begin; i < end; ++i) outputs[i] += weights[t] * convert::LoadOne<kType>(values, t * row + i);
}

// Adds kVectors vectors of dims, from `dim` on, to the outputs of kRows rows.
template <Dtype kType, size_t kRows, size_t kVectors>
HWY_NOINLINE void Weigh(const uint8_t* values, size_t row, int tokens, const float* HWY_RESTRICT weights, size_t dim,
                        float* HWY_RESTRICT outputs, size_t ld) {
  const levels::F d;
  using V = hn::Vec<levels::F>;
  const uint8_t* from = values + dim * size_of(kType);
  const size_t step = row * size_of(kType), ahead = kTile * step;
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
#pragma GCC unroll 1
  for (int t = 0; t < tokens; ++t, from += step) {
    for (size_t line = 0; line < kVectors * hn::Lanes(d) * size_of(kType); line += kLine) PrefetchToL2(from + ahead + line);
    V value[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) value[v] = LoadAsFloat<kType>(d, from, v * hn::Lanes(d));
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * kTile + t]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    V odd = hn::Zero(d);
    for (size_t v = 0; v < kVectors; ++v) odd = hn::MulAdd(sum[r][v], hn::Zero(d), odd);
    float* const to = outputs + r * ld + dim;
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Eq(odd, hn::Zero(d))))) {
      WeighCarefully<kType>(values, row, tokens, weights + r * kTile, dim, dim + kVectors * hn::Lanes(d), outputs + r * ld);
      continue;
    }
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(hn::Add(hn::LoadU(d, to + v * hn::Lanes(d)), sum[r][v]), d, to + v * hn::Lanes(d));
  }
}

template <Dtype kType, size_t kRows>
void WeighRun(const codec::Layout& layout, const uint8_t* values, int tokens, const float* weights, float* outputs, size_t ld) {
  const size_t lanes = hn::Lanes(levels::F()), row = layout.padded_dim;
  size_t dim = 0;
  for (; dim + kMostVectors * lanes <= row; dim += kMostVectors * lanes)
    Weigh<kType, kRows, kMostVectors>(values, row, tokens, weights, dim, outputs, ld);
  for (; dim < row; dim += lanes) Weigh<kType, kRows, 1>(values, row, tokens, weights, dim, outputs, ld);
}

// Calls f with the number of rows in each run of nearly equal height, and where it starts.
template <class Function>
HWY_INLINE void InRuns(size_t count, const Function& f) {
  for (size_t runs = (count + kMostRows - 1) / kMostRows, first = 0; runs; --runs) {
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

template <Dtype kType, size_t kBlock>
void ScoreRows(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count, float* scores) {
  InRuns(count,
         [&](auto n, size_t first) { ScoreRun<kType, kBlock, n>(layout, blocks, tokens, rows + first * ld, ld, scores + first * kTile); });
}

template <Dtype kType>
void ScoreBlocks(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count,
                 float* scores) {
  switch (layout.block_tokens) {
    case 4: return ScoreRows<kType, 4>(layout, blocks, tokens, rows, ld, count, scores);
    case 8: return ScoreRows<kType, 8>(layout, blocks, tokens, rows, ld, count, scores);
    default: return ScoreRows<kType, 16>(layout, blocks, tokens, rows, ld, count, scores);
  }
}

template <Dtype kType>
void WeighRows(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* weights, size_t count, float* outputs,
               size_t ld) {
  InRuns(count,
         [&](auto n, size_t first) { WeighRun<kType, n>(layout, blocks, tokens, weights + first * kTile, outputs + first * ld, ld); });
}

}  // namespace full

void ScoreFull(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count, float* scores) {
  switch (layout.dtype) {
    case Dtype::f16: return full::ScoreBlocks<Dtype::f16>(layout, blocks, tokens, rows, ld, count, scores);
    case Dtype::bf16: return full::ScoreBlocks<Dtype::bf16>(layout, blocks, tokens, rows, ld, count, scores);
    case Dtype::f32: return full::ScoreBlocks<Dtype::f32>(layout, blocks, tokens, rows, ld, count, scores);
  }
}

void WeighFull(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* weights, size_t count, float* outputs,
               size_t ld) {
  switch (layout.dtype) {
    case Dtype::f16: return full::WeighRows<Dtype::f16>(layout, blocks, tokens, weights, count, outputs, ld);
    case Dtype::bf16: return full::WeighRows<Dtype::bf16>(layout, blocks, tokens, weights, count, outputs, ld);
    case Dtype::f32: return full::WeighRows<Dtype::f32>(layout, blocks, tokens, weights, count, outputs, ld);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
