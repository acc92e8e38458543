// RMS norm and rotary embedding against double arithmetic.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/norm_rope.h"
#include "linear_device.cuh"

namespace tersor::kernels::cuda {
namespace {

Numbers random_numbers(Dtype type, size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  Numbers v(type, n);
  for (size_t i = 0; i < n; ++i) v.set(i, normal(rng));
  return v;
}
double eps_of(Dtype type) { return type == Dtype::f16 ? 0x1p-11 : 0x1p-8; }

void run_norm(Dtype type, Dtype weight_type, int rows, int n, bool residual) {
  std::mt19937 rng(static_cast<unsigned>(rows * 7 + n));
  const Numbers x = random_numbers(type, static_cast<size_t>(rows) * n, rng), r = random_numbers(type, x.values.size(), rng);
  const Numbers weight = random_numbers(weight_type, n, rng);
  const Buffer x_device(x.bytes), r_device(r.bytes), weight_device(weight.bytes), out(x.bytes.size(), 0xff), sum(x.bytes.size(), 0xff);
  RmsNormParams p;
  p.x = x_device.get(), p.weight = weight_device.get(), p.out = out.get(), p.rows = rows, p.n = n, p.eps = 1e-5f;
  p.type = type, p.weight_type = weight_type;
  if (residual) p.residual = r_device.get(), p.sum = sum.get();
  const Launch l = rms_norm(p);
  ASSERT_NE(l.function, nullptr);
  launch(l, p);
  const std::vector<uint8_t> got = out.read<uint8_t>(), got_sum = sum.read<uint8_t>();
  for (int row = 0; row < rows; ++row) {
    std::vector<double> s(n);
    double squares = 0;
    for (int i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(row) * n + i;
      s[i] = x.values[at];
      if (residual) {
        ASSERT_NEAR(Numbers::read(type, got_sum.data(), at), s[i] + r.values[at], eps_of(type) * 1.01 * std::fabs(s[i] + r.values[at]));
        s[i] = Numbers::read(type, got_sum.data(), at);
      }
      squares += s[i] * s[i];
    }
    const double scale = 1 / std::sqrt(squares / n + 1e-5);
    for (int i = 0; i < n; ++i) {
      const double want = s[i] * scale * weight.values[i];
      ASSERT_NEAR(Numbers::read(type, got.data(), static_cast<size_t>(row) * n + i), want, eps_of(type) * 1.02 * std::fabs(want) + 1e-7)
          << "row " << row << ", column " << i << " of " << n;
    }
  }
}

TEST(RmsNorm, AgreesWithDouble) {
  for (const Dtype type : {Dtype::f16, Dtype::bf16})
    for (const bool residual : {false, true})
      for (const int n : {8, 576, 2048, 4096, 4104, 5120, 8200, 16384, 32768})
        run_norm(type, n == 576 ? Dtype::f32 : type, n < 5000 ? 17 : 2, n, residual);
}

TEST(RmsNorm, UnsupportedShapesHaveNoKernel) {
  RmsNormParams p;
  p.rows = 1, p.n = 12;
  EXPECT_EQ(rms_norm(p).function, nullptr);
  p.n = kRmsNormMost + 8;
  EXPECT_EQ(rms_norm(p).function, nullptr);
}

struct RopeCase {
  int tokens, per_row, q_heads, k_heads, head_dim, pairs;
  int64_t position;
  bool norm, listed;
  Dtype type;
};

double turned(const RopeCase& c, const Numbers& x, size_t head_at, int i, const Numbers& norm, const std::vector<float>& frequency,
              int64_t position) {
  double squares = 0;
  for (int j = 0; j < c.head_dim; ++j) squares += std::pow(static_cast<double>(x.values[head_at + j]), 2);
  const double scale = c.norm ? 1 / std::sqrt(squares / c.head_dim + 1e-6) : 1;
  const auto value = [&](int j) { return x.values[head_at + j] * scale * (c.norm ? norm.values[j] : 1); };
  if (i >= 2 * c.pairs) return value(i);
  const int pair = i % c.pairs;
  const double angle = static_cast<double>(position) * frequency[pair];
  return i < c.pairs ? value(pair) * std::cos(angle) - value(pair + c.pairs) * std::sin(angle)
                     : value(pair + c.pairs) * std::cos(angle) + value(pair) * std::sin(angle);
}

void run_rope(const RopeCase& c) {
  std::mt19937 rng(3);
  const Numbers norm = random_numbers(c.type, c.head_dim, rng);
  std::vector<float> frequency(c.pairs);
  for (int i = 0; i < c.pairs; ++i) frequency[i] = std::pow(500000.f, -static_cast<float>(i) / static_cast<float>(c.pairs));
  std::vector<int64_t> positions(c.tokens);
  for (int t = 0; t < c.tokens; ++t) positions[t] = c.listed ? c.position + 3 * t : c.position + (c.per_row ? t % c.per_row : t);
  const Buffer frequency_device(frequency), positions_device(positions), norm_device(norm.bytes);
  RopeParams p;
  std::vector<Numbers> x;
  std::vector<Buffer> x_device, out;
  const int heads[2] = {c.q_heads, c.k_heads};
  for (int i = 0; i < 2; ++i) {
    x.push_back(random_numbers(c.type, static_cast<size_t>(c.tokens) * heads[i] * c.head_dim, rng));
    x_device.emplace_back(x[i].bytes), out.emplace_back(x[i].bytes.size(), 0xff);
    p.tensors[i] = {x_device[i].get(),     out[i].get(),          c.norm ? norm_device.get() : nullptr,
                    heads[i] * c.head_dim, heads[i] * c.head_dim, heads[i]};
  }
  p.inv_freq = static_cast<const float*>(frequency_device.get()), p.position = c.position, p.tokens = c.tokens,
  p.tokens_per_row = c.per_row;
  if (c.listed) p.positions = static_cast<const int64_t*>(positions_device.get());
  p.head_dim = c.head_dim, p.pairs = c.pairs, p.eps = 1e-6f, p.type = p.norm_type = c.type;
  const Launch l = rope(&p);
  ASSERT_NE(l.function, nullptr);
  launch(l, p);
  for (int i = 0; i < 2; ++i) {
    const std::vector<uint8_t> got = out[i].read<uint8_t>();
    for (size_t at = 0; at < x[i].values.size(); ++at) {
      const size_t token = at / (static_cast<size_t>(heads[i]) * c.head_dim), head_at = at / c.head_dim * c.head_dim;
      const double want = turned(c, x[i], head_at, static_cast<int>(at - head_at), norm, frequency, positions[token]);
      ASSERT_NEAR(Numbers::read(c.type, got.data(), at), want, eps_of(c.type) * 1.02 * std::fabs(want) + 3e-6)
          << "tensor " << i << ", at " << at;
    }
  }
}

TEST(Rope, AgreesWithDouble) {
  for (const Dtype type : {Dtype::f16, Dtype::bf16}) {
    run_rope({1, 0, 32, 8, 128, 64, 0, false, false, type});
    run_rope({3, 0, 32, 8, 128, 64, 131071, true, false, type});
    run_rope({130, 65, 9, 3, 64, 32, 1000003, false, false, type});
    run_rope({5, 0, 4, 1, 80, 16, 77, true, true, type});
    run_rope({2, 0, 4, 0, 256, 128, 2000000000, false, false, type});
  }
}

}  // namespace
}  // namespace tersor::kernels::cuda
