// Small float matrix product in registers, the core of linear layers with many rows and of attention tiles.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_TILE_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_TILE_MATMUL_INL_H_
#undef TERSOR_KERNELS_CPU_TILE_MATMUL_INL_H_
#else
#define TERSOR_KERNELS_CPU_TILE_MATMUL_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace tile {
namespace hn = hwy::HWY_NAMESPACE;

// Masked loads and stores that touch only the masked lanes exist from AVX2 on.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr bool kMaskedMemory = true;
#else
constexpr bool kMaskedMemory = false;
#endif
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
constexpr size_t kRegisters = 32;
#else
constexpr size_t kRegisters = 16;
#endif
constexpr size_t kMaxRows = 6;

// Vectors of columns that go with `rows` rows: accumulators, one row of B and one broadcast must fit the registers, and
// one to three rows need at least eight accumulators to hide the latency of the multiply-add.
constexpr size_t VectorsFor(size_t rows) {
  if (kRegisters == 32) return rows <= 2 ? 8 : 4;
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// One block of kRows x (kVectors * lanes); with kMasked the last vector has only the lanes of `mask`.
template <bool kAccumulate, size_t kRows, size_t kVectors, bool kMasked, class D, class M>
HWY_INLINE void Block(D d, M mask, const float* HWY_RESTRICT a, size_t lda, const float* HWY_RESTRICT b, size_t ldb, float* HWY_RESTRICT c,
                      size_t ldc, size_t k) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> acc[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) {
      if (!kAccumulate) {
        acc[i][j] = hn::Zero(d);
      } else if (kMasked && j + 1 == kVectors) {
        acc[i][j] = hn::MaskedLoad(mask, d, c + i * ldc + j * lanes);
      } else {
        acc[i][j] = hn::LoadU(d, c + i * ldc + j * lanes);
      }
    }
  }
#pragma GCC unroll 1
  for (size_t p = 0; p < k; ++p, b += ldb) {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j)
      row[j] = kMasked && j + 1 == kVectors ? hn::MaskedLoad(mask, d, b + j * lanes) : hn::LoadU(d, b + j * lanes);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const auto x = hn::Set(d, a[i * lda + p]);
#pragma GCC unroll 8
      for (size_t j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(x, row[j], acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) {
      if (kMasked && j + 1 == kVectors) {
        hn::BlendedStore(acc[i][j], mask, d, c + i * ldc + j * lanes);
      } else {
        hn::StoreU(acc[i][j], d, c + i * ldc + j * lanes);
      }
    }
  }
}

// The remaining columns of kRows rows, fewer than VectorsFor(kRows) full vectors: powers of two of vectors, then a masked
// one (or single columns where memory cannot be masked).
template <bool kAccumulate, size_t kRows, size_t kVectors>
HWY_INLINE void Tail(const float* a, size_t lda, const float* b, size_t ldb, float* c, size_t ldc, size_t n, size_t k) {
  const hn::ScalableTag<float> d;
  const size_t width = kVectors * hn::Lanes(d);
  const auto all = hn::FirstN(d, hn::Lanes(d));
  if (n >= width) {
    Block<kAccumulate, kRows, kVectors, false>(d, all, a, lda, b, ldb, c, ldc, k);
    b += width, c += width, n -= width;
  }
  if constexpr (kVectors > 1) {
    if (n) Tail<kAccumulate, kRows, kVectors / 2>(a, lda, b, ldb, c, ldc, n, k);
  } else if constexpr (kMaskedMemory) {
    if (n) Block<kAccumulate, kRows, 1, true>(d, hn::FirstN(d, n), a, lda, b, ldb, c, ldc, k);
  } else {
    const hn::CappedTag<float, 1> d1;
    for (; n; ++b, ++c, --n) Block<kAccumulate, kRows, 1, false>(d1, hn::FirstN(d1, 1), a, lda, b, ldb, c, ldc, k);
  }
}

// kRows rows over all columns.
template <bool kAccumulate, size_t kRows>
HWY_NOINLINE void Rows(const float* a, size_t lda, const float* b, size_t ldb, float* c, size_t ldc, size_t n, size_t k) {
  const hn::ScalableTag<float> d;
  constexpr size_t kVectors = VectorsFor(kRows);
  const size_t width = kVectors * hn::Lanes(d);
  const auto all = hn::FirstN(d, hn::Lanes(d));
  for (; n >= width; b += width, c += width, n -= width) Block<kAccumulate, kRows, kVectors, false>(d, all, a, lda, b, ldb, c, ldc, k);
  if (n) Tail<kAccumulate, kRows, kVectors / 2>(a, lda, b, ldb, c, ldc, n, k);
}
}  // namespace tile

/// C[m x n] (+)= A[m x k] * B[k x n], float, row-major with leading dimensions lda, ldb, ldc. m, n >= 1; k may be 0.
/// Reads and writes nothing outside the three matrices. C must not overlap A or B. Nothing is blocked for the caches:
/// B should fit the second-level cache, and its rows should be packed (ldb close to n) when k is large.
template <bool kAccumulate>
void TileMatMul(const float* a, size_t lda, const float* b, size_t ldb, float* c, size_t ldc, size_t m, size_t n, size_t k) {
  // Blocks of nearly equal height: 7 rows run as 4 + 3, not as 6 + 1.
  for (size_t blocks = (m + tile::kMaxRows - 1) / tile::kMaxRows; blocks; --blocks) {
    const size_t rows = (m + blocks - 1) / blocks;
    switch (rows) {
      case 1: tile::Rows<kAccumulate, 1>(a, lda, b, ldb, c, ldc, n, k); break;
      case 2: tile::Rows<kAccumulate, 2>(a, lda, b, ldb, c, ldc, n, k); break;
      case 3: tile::Rows<kAccumulate, 3>(a, lda, b, ldb, c, ldc, n, k); break;
      case 4: tile::Rows<kAccumulate, 4>(a, lda, b, ldb, c, ldc, n, k); break;
      case 5: tile::Rows<kAccumulate, 5>(a, lda, b, ldb, c, ldc, n, k); break;
      default: tile::Rows<kAccumulate, 6>(a, lda, b, ldb, c, ldc, n, k); break;
    }
    a += rows * lda, c += rows * ldc, m -= rows;
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
