// TileMatMul and the dispatch itself, on every SIMD target of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd_target.h"
#include "tersor/base.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels_cpu/tile_matmul_test.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

const char* CompiledTarget() { return hwy::TargetName(HWY_TARGET); }

void Product(bool accumulate, const float* a, size_t lda, const float* b, size_t ldb, float* c, size_t ldc, size_t m, size_t n, size_t k) {
  if (accumulate) {
    TileMatMul<true>(a, lda, b, ldb, c, ldc, m, n, k);
  } else {
    TileMatMul<false>(a, lda, b, ldb, c, ldc, m, n, k);
  }
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(CompiledTarget);
HWY_EXPORT(Product);

namespace {

class EveryTarget : public testing::Test {
 protected:
  ~EveryTarget() override { force_simd_target(""); }
};

// C = A B (+ C) with separate allocations of exactly the size that may be touched (the address sanitizer sees the rest).
void check(size_t m, size_t n, size_t k, bool accumulate) {
  const size_t lda = k + 3, ldb = n + 2, ldc = n + 5;
  std::mt19937 rng(static_cast<unsigned>(m * 1000003 + n * 1009 + k));
  std::normal_distribution<float> normal;
  std::vector<float> a(m ? (m - 1) * lda + k : 0), b(k ? (k - 1) * ldb + n : 0), c((m - 1) * ldc + n, 7.0f);
  for (auto* v : {&a, &b})
    for (float& x : *v) x = normal(rng);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) c[i * ldc + j] = accumulate ? normal(rng) : std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> before = c;
  HWY_DYNAMIC_DISPATCH(Product)(accumulate, a.data(), lda, b.data(), ldb, c.data(), ldc, m, n, k);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < (i + 1 < m ? ldc : n); ++j) {
      if (j >= n) {
        ASSERT_EQ(c[i * ldc + j], 7.0f) << "wrote outside at row " << i << " column " << j;
        continue;
      }
      double sum = accumulate ? before[i * ldc + j] : 0.0, magnitude = std::abs(sum);
      for (size_t p = 0; p < k; ++p) {
        const double term = static_cast<double>(a[i * lda + p]) * b[p * ldb + j];
        sum += term, magnitude += std::abs(term);
      }
      const double tolerance = static_cast<double>(k + 1) * std::numeric_limits<float>::epsilon() * magnitude;
      ASSERT_NEAR(c[i * ldc + j], sum, tolerance) << "m " << m << " n " << n << " k " << k << " at " << i << ", " << j;
    }
  }
}

TEST_F(EveryTarget, ForcedTargetIsTheOneThatRuns) {
  ASSERT_FALSE(available_simd_targets().empty());
  for (const auto& name : available_simd_targets()) {
    force_simd_target(name);
    EXPECT_EQ(simd_target_name(), name);
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(CompiledTarget)(), name);
  }
  force_simd_target("");
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(CompiledTarget)(), available_simd_targets().front());
}

TEST_F(EveryTarget, NamesAreCaseInsensitiveAndCheckedAgainstTheMachine) {
  std::string lower = available_simd_targets().back();
  for (char& c : lower) c = static_cast<char>(std::tolower(c));
  force_simd_target(lower);
  EXPECT_EQ(simd_target_name(), available_simd_targets().back());
  try {
    force_simd_target("mmx");
    FAIL() << "an unknown target was accepted";
  } catch (const Error& error) {
    for (const auto& name : available_simd_targets()) EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
  }
  EXPECT_EQ(simd_target_name(), available_simd_targets().back()) << "a refused name must change nothing";
}

TEST_F(EveryTarget, TileMatMulEqualsTheDoubleReference) {
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (size_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13})
      for (size_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 64, 65, 80, 96, 127, 128, 129, 250})
        for (size_t k : {0, 1, 2, 37}) check(m, n, k, (m + n + k) % 2);
    check(23, 144, 300, true);
    check(23, 144, 300, false);
  }
}

}  // namespace
}  // namespace tersor::kernels
#endif  // HWY_ONCE
