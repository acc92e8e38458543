// RMS norm and rotary embedding against plain double arithmetic, on every SIMD target of this machine.
#include "kernels/cpu/norm_rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/float_convert.h"
#include "kernels/cpu/simd_target.h"

namespace tersor::kernels {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr Dtype kTypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};
double unit_of(Dtype type) { return type == Dtype::f32 ? kEpsilon : type == Dtype::f16 ? 0x1p-10 : 0x1p-7; }

// Random numbers rounded to a type, with their bytes.
struct Numbers {
  std::vector<float> values;
  std::vector<char> bytes;
  Numbers(Dtype type, size_t n, unsigned seed) : values(n), bytes(n * size_of(type)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(rng);
    from_float(type, values.data(), bytes.data(), n);
    to_float(type, bytes.data(), values.data(), n);
  }
};

class NormRope : public testing::Test {
 protected:
  ~NormRope() override { force_simd_target(""); }
};

TEST_F(NormRope, RmsNormEqualsTheDoubleReference) {
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (const size_t n : {1, 5, 16, 31, 64, 100, 576}) {
      for (const Dtype type : kTypes) {
        for (const Dtype weight_type : kTypes) {
          const Numbers x(type, 3 * n, 1), weight(weight_type, n, 2);
          std::vector<char> out(x.bytes.size());
          std::vector<float> got(3 * n);
          rms_norm_rows(type, x.bytes.data(), weight_type, weight.bytes.data(), 1e-5f, out.data(), 3, n);
          to_float(type, out.data(), got.data(), 3 * n);
          for (size_t i = 0; i < 3 * n; ++i) {
            double squares = 0;
            for (size_t k = 0; k < n; ++k) squares += static_cast<double>(x.values[i / n * n + k]) * x.values[i / n * n + k];
            const double want = x.values[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * weight.values[i % n];
            const double tolerance = (unit_of(type) + static_cast<double>(n / 2 + 8) * kEpsilon) * std::abs(want);
            ASSERT_NEAR(got[i], want, tolerance + (type == Dtype::f16 ? 0x1p-25 : 0)) << n << " " << i;  // half a subnormal step
          }
        }
      }
    }
  }
}

TEST_F(NormRope, RmsNormOfZerosAndOfARowBesideInfinity) {
  std::vector<float> x(3 * 64, 0.0f), out(x.size()), weight(64, 1.0f);
  x[64 + 9] = std::numeric_limits<float>::infinity();
  x[128] = 1e4f;
  for (const auto& name : available_simd_targets()) {
    force_simd_target(name);
    rms_norm_rows(Dtype::f32, x.data(), Dtype::f32, weight.data(), 1e-6f, out.data(), 3, 64);
    for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], 0.0f);
    ASSERT_NEAR(out[128], 8.0f, 1e-5f);  // sqrt(64)
    ASSERT_EQ(out[129], 0.0f);
  }
}

TEST_F(NormRope, TableIsRightToAMillionthAtAnyPosition) {
  std::vector<float> inv_freq(37), table(2 * 2 * 37);
  for (size_t i = 0; i < 37; ++i) inv_freq[i] = static_cast<float>(std::pow(100000.0, -static_cast<double>(i) / 37));
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (const int64_t position : {0, 1, 17, 8191, 100000, 10000000}) {
      rope_table(inv_freq.data(), 37, position, 2, 1.5f, table.data());
      for (size_t t = 0; t < 2; ++t) {
        for (size_t i = 0; i < 37; ++i) {
          const double angle = static_cast<double>(position + static_cast<int64_t>(t)) * inv_freq[i];
          ASSERT_NEAR(table[t * 74 + i], 1.5 * std::cos(angle), 1.5e-6) << position << " pair " << i;
          ASSERT_NEAR(table[t * 74 + 37 + i], 1.5 * std::sin(angle), 1.5e-6) << position << " pair " << i;
        }
      }
    }
  }
}

TEST_F(NormRope, HeadsTurnAndAreNormedFirst) {
  for (const auto& name : available_simd_targets()) {
    SCOPED_TRACE(name);
    force_simd_target(name);
    for (const size_t head_dim : {64, 80, 10}) {
      for (const size_t pairs : {head_dim / 2, head_dim / 4}) {
        for (const Dtype type : kTypes) {
          for (const bool normed : {false, true}) {
            const Numbers x(type, 3 * head_dim, 4), norm(Dtype::f16, head_dim, 5), angles(Dtype::f32, 2 * pairs, 6);
            std::vector<char> out(x.bytes.size());
            std::vector<float> got(3 * head_dim), scratch(head_dim);
            const RopeHeads params{type, head_dim, pairs, normed ? norm.bytes.data() : nullptr, Dtype::f16, 1e-6f};
            rope_token(params, x.bytes.data(), angles.values.data(), out.data(), 3, scratch.data());
            to_float(type, out.data(), got.data(), got.size());
            for (size_t h = 0; h < 3; ++h) {
              std::vector<double> v(x.values.begin() + h * head_dim, x.values.begin() + (h + 1) * head_dim);
              double squares = 0, largest = 0;
              for (const double e : v) squares += e * e;
              for (size_t i = 0; normed && i < head_dim; ++i)
                v[i] *= norm.values[i] / std::sqrt(squares / static_cast<double>(head_dim) + 1e-6);
              for (const double e : v) largest = std::max(largest, std::abs(e));
              for (size_t i = 0; i < head_dim; ++i) {
                double want = v[i];
                if (i < pairs)
                  want = v[i] * angles.values[i] - v[i + pairs] * angles.values[pairs + i];
                else if (i < 2 * pairs)
                  want = v[i - pairs] * angles.values[i] + v[i] * angles.values[i - pairs];
                ASSERT_NEAR(got[h * head_dim + i], want, unit_of(type) * std::abs(want) + 64 * kEpsilon * largest)
                    << head_dim << " " << pairs << " " << i;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tersor::kernels
