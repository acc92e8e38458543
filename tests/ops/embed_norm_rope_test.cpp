// Embedding, RMS norm and rotary embedding nodes, and the choice of kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "kernels/cpu/simd_target.h"
#include "ops/composed.h"
#include "ops/reference.h"

namespace tersor::ops {
namespace {

const mx::Dtype kDtypes[] = {mx::float32, mx::float16, mx::bfloat16};

TEST(Embed, RowsEqualTheWeights) {
  std::mt19937 rng(3);
  for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
    for (const mx::Dtype dtype : kDtypes) {
      const LinearWeight w = random_weight(rng, bits, bits ? 32 : 0, 50, 96, mx::float16);
      const Worth worth(w);
      std::vector<int32_t> ids(21);
      for (auto& id : ids) id = static_cast<int32_t>(rng() % 50);
      const mx::array tokens(ids.data(), {3, 7}, mx::int32);
      for (const bool use_fast : {true, false}) {
        const mx::array rows = use_fast ? embed(tokens, w, dtype) : composed::embed(tokens, w, dtype, {});
        ASSERT_EQ(rows.shape(), (mx::Shape{3, 7, 96}));
        ASSERT_EQ(rows.dtype(), dtype);
        const auto values = floats_of(rows);
        for (size_t i = 0; i < values.size(); ++i) {
          const size_t at = static_cast<size_t>(ids[i / 96]) * 96 + i % 96;
          ASSERT_NEAR(values[i], worth.value[at],
                      unit_of(dtype) * std::abs(worth.value[at]) + 2 * kFloatEpsilon * worth.terms[at] + 0x1p-25)
              << w.str();
        }
      }
    }
  }
}

TEST(Embed, IdsOutsideTheTableThrow) {
  std::mt19937 rng(3);
  const LinearWeight w = random_weight(rng, 8, 32, 50, 32, mx::float16);
  for (const int id : {50, -1, 2147483647}) {
    EXPECT_THROW(mx::eval(embed(mx::array({3, id}), w, mx::float32)), std::runtime_error) << id;  // as MLX passes on what a stream throws
    EXPECT_THROW(composed::embed(mx::array({3, id}), w, mx::float32, {}), std::invalid_argument) << id;
  }
  EXPECT_THROW(embed(mx::array({0.5f}), w, mx::float32), std::invalid_argument);
  EXPECT_EQ(embed(mx::zeros({0}, mx::int32), w, mx::float32).shape(), (mx::Shape{0, 32}));
  EXPECT_EQ(floats_of(embed(mx::array({uint32_t{49}}, mx::uint32), w, mx::float32)).size(), 32u);  // and works after an error
}

TEST(RmsNorm, EqualsTheDoubleReferenceFastAndComposed) {
  std::mt19937 rng(4);
  for (const int n : {8, 64, 100, 576}) {
    for (const mx::Dtype dtype : kDtypes) {
      const mx::array x = random_array(rng, {2, 40, n}, dtype), weight = random_array(rng, {n}, mx::float32);
      const auto xs = floats_of(x), ws = floats_of(weight);
      for (const bool use_fast : {true, false}) {
        const mx::array y = rms_norm(x, weight, 1e-5f, use_fast ? fast("rms_norm") : composed_choice("rms_norm"));
        ASSERT_EQ(y.dtype(), dtype);
        const auto got = floats_of(y);
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t row = i / static_cast<size_t>(n) * static_cast<size_t>(n);
          double squares = 0;
          for (size_t k = 0; k < static_cast<size_t>(n); ++k) squares += static_cast<double>(xs[row + k]) * xs[row + k];
          const double want = xs[i] / std::sqrt(squares / n + 1e-5) * ws[i - row];
          // The composed version may round x / rms to its own type before it multiplies.
          const double units = unit_of(dtype) * (use_fast ? 1 : 3) + (n / 2 + 8) * kFloatEpsilon;
          ASSERT_NEAR(got[i], want, units * std::abs(want) + 0x1p-24) << n << " " << dtype << " " << use_fast;
        }
      }
    }
  }
  EXPECT_THROW(rms_norm(mx::zeros({2, 8}), mx::zeros({9}), 1e-5f, fast("rms_norm")), std::invalid_argument);
}

// One element of the reference: head `h` of token row `x`, normed if `norm` is not empty, turned to position p.
std::vector<double> turned(const float* x, const std::vector<float>& norm, const std::vector<float>& inv_freq, size_t d, double p,
                           double scale) {
  std::vector<double> v(x, x + d), out;
  double squares = 0;
  for (const double e : v) squares += e * e;
  for (size_t i = 0; i < norm.size(); ++i) v[i] *= norm[i] / std::sqrt(squares / static_cast<double>(d) + 1e-6);
  out = v;
  const size_t pairs = inv_freq.size();
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = p * inv_freq[i], c = scale * std::cos(angle), s = scale * std::sin(angle);
    out[i] = v[i] * c - v[i + pairs] * s;
    out[i + pairs] = v[i] * s + v[i + pairs] * c;
  }
  return out;
}

TEST(Rope, EqualsTheDoubleReferenceFastAndComposed) {
  std::mt19937 rng(5);
  for (const int d : {64, 80, 128}) {
    for (const mx::Dtype dtype : kDtypes) {
      for (const bool normed : {false, true}) {
        for (const int64_t position : {0, 1000, 100000}) {
          const int pairs = d == 80 ? 20 : d / 2, tokens = normed ? 1 : 37;
          std::vector<float> inv_freq(static_cast<size_t>(pairs));
          for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = static_cast<float>(std::pow(1e5, -static_cast<double>(i) / pairs));
          RopeParams params{d, mx::array(inv_freq.data(), {pairs}, mx::float32), normed ? 1.0f : 1.25f, {}, {}};
          if (normed) params.q_norm = random_array(rng, {d}, mx::float16), params.k_norm = random_array(rng, {d}, mx::float32);
          const mx::array q = random_array(rng, {2, tokens, 3 * d}, dtype), k = random_array(rng, {2, tokens, d}, dtype);
          for (const bool use_fast : {true, false}) {
            const QueryKey out = rope(q, k, params, position, use_fast ? fast("rope") : composed_choice("rope"));
            for (const bool query : {true, false}) {
              const auto from = floats_of(query ? q : k), got = floats_of(query ? out.q : out.k);
              const auto norm = normed ? floats_of(query ? *params.q_norm : *params.k_norm) : std::vector<float>();
              ASSERT_EQ((query ? out.q : out.k).dtype(), dtype);
              const size_t dim = static_cast<size_t>(d), heads = query ? 3 : 1;
              for (size_t h = 0; h < from.size() / dim; ++h) {
                const double p = static_cast<double>(position) + static_cast<double>(h / heads % static_cast<size_t>(tokens));
                const auto want = turned(&from[h * dim], norm, inv_freq, dim, p, params.attention_scale);
                double largest = 0;
                for (const double v : want) largest = std::max(largest, std::abs(v));
                for (size_t i = 0; i < dim; ++i)
                  ASSERT_NEAR(got[h * dim + i], want[i], unit_of(dtype) * std::abs(want[i]) + 1e-5 * largest)
                      << "head size " << d << " position " << position << " fast " << use_fast << " " << h << " " << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Rope, BadArgumentsAreRefused) {
  const RopeParams params{64, mx::zeros({32}), 1.0f, {}, {}}, wide{64, mx::zeros({33}), 1.0f, {}, {}};
  EXPECT_THROW(rope(mx::zeros({1, 2, 65}), mx::zeros({1, 2, 64}), params, 0, fast("rope")), std::invalid_argument);
  EXPECT_THROW(rope(mx::zeros({1, 2, 64}), mx::zeros({1, 3, 64}), params, 0, fast("rope")), std::invalid_argument);
  EXPECT_THROW(rope(mx::zeros({1, 2, 64}), mx::zeros({1, 2, 64}), params, -1, fast("rope")), std::invalid_argument);
  EXPECT_THROW(rope(mx::zeros({1, 2, 64}), mx::zeros({1, 2, 64}), wide, 0, fast("rope")), std::invalid_argument);
}

TEST(Choose, NamesTheKernelOrTheReason) {
  const Choice linear = choose("linear", "affine:4,group=32,packed", mx::float32, 0, Policy::automatic);
  EXPECT_TRUE(linear.fast);
  EXPECT_EQ(linear.kernel, "cpu/linear_packed [" + kernels::simd_target_name() + "]");
  EXPECT_EQ(linear.problem, "affine:4,group=32,packed f32");
  const Choice odd = choose("linear", "affine:7,group=32,packed", mx::float32, 0, Policy::automatic);
  EXPECT_FALSE(odd.fast);
  EXPECT_EQ(odd.kernel, "mlx (composed)");
  EXPECT_THAT(odd.reason, testing::HasSubstr("affine:7,group=32"));
  EXPECT_THROW(choose("linear", "affine:7,group=32,packed", mx::float32, 0, Policy::require), Error);
  EXPECT_THROW(choose("linear", "f32,packed", mx::float64, 0, Policy::require), Error);
  EXPECT_FALSE(choose("rope", "", mx::float32, 64, Policy::forbid).fast);
  EXPECT_TRUE(choose("rope", "qk_norm", mx::bfloat16, 80, Policy::require).fast);
  EXPECT_TRUE(choose("rms_norm", "", mx::float16, 0, Policy::require).fast);
  EXPECT_TRUE(choose("kv_attend", "turboquant:4", mx::float16, 64, Policy::require).fast);
  EXPECT_THROW(choose("conv", "", mx::float32, 0, Policy::automatic), std::invalid_argument);
}

TEST(Choose, TableListsEveryOpWithItsSimdTarget) {
  std::set<std::string> ops;
  for (const Choice& row : kernel_table()) {
    EXPECT_TRUE(row.fast);
    EXPECT_THAT(row.kernel, testing::EndsWith("[" + kernels::simd_target_name() + "]"));
    ops.insert(row.op);
  }
  EXPECT_THAT(ops, testing::IsSupersetOf({"linear", "embed", "rms_norm", "rope", "kv_append", "kv_attend"}));
}

TEST(Choose, PoliciesHaveNames) {
  for (const Policy policy : {Policy::automatic, Policy::require, Policy::forbid}) EXPECT_EQ(parse_policy(name_of(policy)), policy);
  EXPECT_THROW(parse_policy("always"), Error);
}

}  // namespace
}  // namespace tersor::ops
