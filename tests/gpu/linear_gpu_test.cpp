// Linear layers, norms, rope, embedding and argmax on MLX's GPU backend: the plug-in's kernels against MLX operations in float32.
#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <cstdlib>

#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "tersor/cache.h"

namespace tersor::ops {
namespace {

// MLX multiplies floats in 19 bits unless told otherwise.
const int kExactProducts = setenv("MLX_ENABLE_TF32", "0", 1);

mx::array normal(mx::Shape shape, mx::Dtype dtype) { return mx::astype(mx::random::normal(std::move(shape)), dtype); }
mx::array wide(const mx::array& x) { return mx::astype(x, mx::float32); }

double relative_error(const mx::array& a, const mx::array& b) {
  const mx::array x = wide(a), y = wide(b);
  const double e = mx::sqrt(mx::divide(mx::sum(mx::square(mx::subtract(x, y))), mx::sum(mx::square(y)))).item<float>();
  return std::isnan(e) ? INFINITY : e;
}

// A weight as files have it, and the same in float32.
struct Pair {
  LinearWeight weight;
  mx::array dense;
};
Pair make_weight(int out, int in, int bits, int group, mx::Dtype type, bool bias) {
  const mx::array full = mx::multiply(normal({out, in}, mx::float32), mx::array(1 / std::sqrt(static_cast<float>(in))));
  std::optional<mx::array> b;
  if (bias) b = normal({out}, type);
  if (bits == 0) return {{mx::astype(full, type), {}, {}, 0, 0, b}, wide(mx::astype(full, type))};
  const auto parts = mx::quantize(full, group, bits);
  const mx::array scales = mx::astype(parts[1], type), biases = mx::astype(parts[2], type);
  return {{parts[0], scales, biases, bits, group, b}, mx::dequantize(parts[0], wide(scales), wide(biases), group, bits)};
}

struct Case {
  int bits, group;
  mx::Dtype type;
};
const Case kCases[] = {{4, 64, mx::bfloat16}, {4, 32, mx::float16},   {4, 128, mx::float16}, {8, 64, mx::float16},
                       {8, 32, mx::bfloat16}, {8, 128, mx::bfloat16}, {0, 0, mx::float16},   {0, 0, mx::bfloat16}};
const int kRows[] = {1, 2, 4, 5, 9, 16, 17, 40, 130};

double tolerance(mx::Dtype type) { return type == mx::float16 ? 1.5e-3 : 8e-3; }

mx::array product(const mx::array& x, const Pair& p) {
  mx::array y = mx::matmul(wide(x), mx::transpose(p.dense));
  return p.weight.bias ? mx::add(y, wide(*p.weight.bias)) : y;
}
mx::array normed(const mx::array& x, const RmsNorm& norm) { return mx::fast::rms_norm(wide(x), wide(norm.weight), norm.eps); }

class LinearGpu : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { mx::random::seed(3); }
  void pack(std::initializer_list<Pair*> pairs, bool paired) {
    std::vector<LinearWeight*> weights;
    for (Pair* p : pairs) weights.push_back(&p->weight);
    if (GetParam().bits) LinearPacker::pack_on_gpu(weights, paired, GetParam().type);
  }
  Choice choice(const Pair& p) { return choose("linear", p.weight.str(), GetParam().type, 0, Policy::require); }
};

TEST_P(LinearGpu, SeveralWeightsAndNorm) {
  const auto [bits, group, type] = GetParam();
  for (const int in : {128, 384, 1152}) {
    Pair q = make_weight(200, in, bits, group, type, true), k = make_weight(72, in, bits, group, type, false),
         v = make_weight(33, in, bits, group, type, true);
    pack({&q, &k, &v}, false);
    const RmsNorm norm{normal({in}, mx::float32), 1e-5f};
    for (const int rows : kRows)
      for (const bool with_norm : {false, true}) {
        const mx::array x = normal({1, rows, in}, type), from = with_norm ? normed(x, norm) : wide(x);
        const LinearWeight weights[] = {q.weight, k.weight, v.weight};
        const auto y = linear(x, weights, choice(q), with_norm ? std::optional(norm) : std::nullopt);
        for (int i = 0; i < 3; ++i)
          EXPECT_LE(relative_error(y[static_cast<size_t>(i)], product(from, i == 0   ? q
                                                                            : i == 1 ? k
                                                                                     : v)),
                    tolerance(type))
              << bits << "/" << group << " in " << in << " rows " << rows << " norm " << with_norm << " weight " << i;
      }
  }
}

TEST_P(LinearGpu, AddSwigluLogits) {
  const auto [bits, group, type] = GetParam();
  const int in = 640, out = 344;
  Pair gate = make_weight(out, in, bits, group, type, true), up = make_weight(out, in, bits, group, type, false),
       add = make_weight(out, in, bits, group, type, true), head = make_weight(1000, in, bits, group, type, false);
  pack({&gate, &up}, true), pack({&add}, false), pack({&head}, false);
  const RmsNorm norm{normal({in}, mx::float32), 1e-5f};
  for (const int rows : kRows) {
    const mx::array x = normal({1, rows, in}, type), residual = normal({1, rows, out}, type);
    EXPECT_LE(relative_error(linear_add(x, add.weight, residual, choice(add)), mx::add(product(x, add), wide(residual))), tolerance(type));
    const mx::array from = normed(x, norm), g = product(from, gate);
    const mx::array expected = mx::multiply(mx::multiply(g, mx::sigmoid(g)), product(from, up));
    EXPECT_LE(relative_error(linear_gated(x, gate.weight, up.weight, Activation::silu, choice(gate), norm), expected), 2 * tolerance(type))
        << rows;
    const mx::array scores = logits(x, head.weight, choice(head), norm);
    EXPECT_EQ(scores.dtype(), mx::float32);
    EXPECT_EQ(scores.shape(), (mx::Shape{rows, 1000}));
    EXPECT_LE(relative_error(scores, mx::reshape(product(from, head), {rows, 1000})), tolerance(type)) << rows;
  }
}

// Rows that begin anywhere, and rows that lie apart.
TEST_P(LinearGpu, Views) {
  const auto [bits, group, type] = GetParam();
  const int in = 256, out = 96;
  Pair p = make_weight(out, in, bits, group, type, false);
  pack({&p}, false);
  const mx::array all = normal({1, 40, in + 3}, type);
  mx::eval(all);
  for (const int rows : {1, 3, 16, 30}) {
    const mx::array x = mx::slice(all, {0, 1, 3}, {1, 1 + rows, in + 3});
    EXPECT_LE(relative_error(linear(x, {&p.weight, 1}, choice(p))[0], product(x, p)), tolerance(type)) << rows;
    EXPECT_LE(relative_error(logits(x, p.weight, choice(p), {mx::ones({in}), 1e-5f}),
                             mx::reshape(product(normed(x, {mx::ones({in}), 1e-5f}), p), {rows, out})),
              tolerance(type));
  }
}

TEST_P(LinearGpu, FeedForwardAndEmbedding) {
  const auto [bits, group, type] = GetParam();
  const int hidden = 256, inner = 384;
  Pair o = make_weight(hidden, hidden, bits, group, type, false), gate = make_weight(inner, hidden, bits, group, type, false),
       up = make_weight(inner, hidden, bits, group, type, false), down = make_weight(hidden, inner, bits, group, type, false),
       table = make_weight(77, hidden, bits, group, type, false);
  pack({&o}, false), pack({&gate, &up}, true), pack({&down}, false), pack({&table}, false);
  const RmsNorm norm{normal({hidden}, mx::float32), 1e-5f};
  for (const int rows : {1, 4, 7, 100}) {
    const mx::array attended = normal({1, rows, hidden}, type), residual = normal({1, rows, hidden}, type);
    const mx::array h = mx::add(product(attended, o), wide(residual)), g = product(normed(h, norm), gate);
    const mx::array gated = mx::multiply(mx::multiply(g, mx::sigmoid(g)), product(normed(h, norm), up));
    const mx::array y = feed_forward(attended, residual, {o.weight, norm, gate.weight, up.weight, down.weight}, choice(o));
    EXPECT_LE(relative_error(y, mx::add(product(gated, down), h)), 2 * tolerance(type)) << rows;
  }
  const mx::array ids = mx::array({0, 76, 15, 16, 33, 5}, {2, 3}, mx::int32);
  for (const mx::Dtype id_type : {mx::int32, mx::int64, mx::uint32}) {
    const mx::array rows = embed(mx::astype(ids, id_type), table.weight, type);
    EXPECT_LE(relative_error(rows, mx::take(table.dense, mx::astype(ids, mx::int32), 0)), type == mx::float16 ? 5e-4 : 4e-3);
  }
  EXPECT_TRUE(mx::all(mx::isnan(embed(mx::array({77, -1}, {2}, mx::int32), table.weight, type))).item<bool>());
}

INSTANTIATE_TEST_SUITE_P(All, LinearGpu, testing::ValuesIn(kCases));

TEST(OpsGpu, NormAndRopeAgreeWithComposedOperations) {
  mx::random::seed(4);
  const Choice none = choose("rope", "", mx::float16, 64, Policy::forbid);
  for (const mx::Dtype type : {mx::float16, mx::bfloat16})
    for (const int rows : {1, 5, 300}) {
      const mx::array x = normal({2, rows, 576}, type), weight = normal({576}, mx::float32);
      const Choice norm = choose("rms_norm", "", type, 0, Policy::require);
      EXPECT_LE(relative_error(rms_norm(x, weight, 1e-5f, norm), rms_norm(wide(x), weight, 1e-5f, none)), tolerance(type));
      const int dim = 96;
      const mx::array q = normal({2, rows, 4 * dim}, type), k = normal({2, rows, 2 * dim}, type);
      std::vector<float> frequencies(40);
      for (size_t i = 0; i < 40; ++i) frequencies[i] = std::pow(500000.0f, -static_cast<float>(i) / 48);
      RopeParams p{dim, mx::array(frequencies.begin(), {40}, mx::float32), 1.1f, {}, {}, 1e-6f};
      for (const bool normed : {false, true}) {
        if (normed) p.q_norm = normal({dim}, mx::float32), p.k_norm = normal({dim}, mx::float32);
        const auto fast = rope(q, k, p, 100000, choose("rope", normed ? "qk_norm" : "", type, dim, Policy::require));
        const auto slow = rope(wide(q), wide(k), p, 100000, none);
        EXPECT_LE(relative_error(fast.q, slow.q), tolerance(type));
        EXPECT_LE(relative_error(fast.k, slow.k), tolerance(type));
      }
    }
}

// One launch against rope by itself and appending.
TEST(OpsGpu, AppendTurnsQueriesAndKeys) {
  mx::random::seed(5);
  for (const int dim : {64, 80, 96, 128, 256})
    for (const char* name : {"turboquant:4", "full", "affine:4,window=20,sinks=4"})
      for (const bool normed : {false, true}) {
        SCOPED_TRACE(std::string(name) + " D=" + std::to_string(dim) + (normed ? " normed" : ""));
        const auto spec = cache::KvSpec::parse(name);
        const cache::LayerShape shape{1, 2, dim, dim};
        const auto make = [&] {
          return cache::LayerCache(spec.keys, spec.values, spec.window, spec.sinks, shape, Dtype::f16, Policy::require);
        };
        cache::LayerCache one = make(), two = make();
        const int pairs = dim == 96 ? 40 : dim / 2;
        std::vector<float> frequencies(static_cast<size_t>(pairs));
        for (int i = 0; i < pairs; ++i) frequencies[static_cast<size_t>(i)] = std::pow(10000.0f, -static_cast<float>(i) / pairs);
        RopeParams p{dim, mx::array(frequencies.begin(), {pairs}, mx::float32), 1.0f, {}, {}, 1e-6f};
        if (normed) p.q_norm = normal({dim}, mx::float32), p.k_norm = normal({dim}, mx::float32);
        const Choice choice = choose("rope", normed ? "qk_norm" : "", mx::float16, dim, Policy::require);
        for (const int tokens : {1, 70, 1, 3}) {
          const mx::array q = normal({1, tokens, 6 * dim}, mx::float16), k = normal({1, tokens, 2 * dim}, mx::float16),
                          v = normal({1, tokens, 2 * dim}, mx::float16);
          const auto turned = rope(q, k, p, two.tokens(), choice);
          const mx::array a = one.append_turned({q, k, v}, p, choice);
          two.append(turned.k, v);
          EXPECT_LE(relative_error(a, turned.q), 1e-3) << tokens;
          // Turned keys are rounded before they are coded in the one and not in the other, so that a code may fall to the next level.
          EXPECT_LE(relative_error(one.attend(a), two.attend(turned.q)), spec.keys.str() == "full" ? 2e-3 : 4e-2) << tokens;
        }
      }
}

TEST(OpsGpu, ArgmaxPicksAsTheHostDoes) {
  mx::random::seed(6);
  for (const int count : {1, 31, 8192, 8193, 50000})
    for (const int rows : {1, 3}) {
      const mx::array x = normal({rows, count + 7}, mx::float32);
      const mx::array expected = mx::argmax(mx::slice(x, {0, 0}, {rows, count}), -1);
      EXPECT_TRUE(mx::array_equal(ops::argmax(x, count), mx::astype(expected, mx::int32)).item<bool>()) << count;
    }
  const mx::array ties = mx::array({-2.0f, -1.0f, -1.0f, -INFINITY}, {1, 4});
  EXPECT_EQ(ops::argmax(ties, 4).item<int32_t>(), 1);
  EXPECT_EQ(ops::argmax(mx::array({0.0f, NAN}, {1, 2}), 2).item<int32_t>(), -1);
  EXPECT_EQ(ops::argmax(mx::array({0.0f, INFINITY}, {1, 2}), 2).item<int32_t>(), -1);
  EXPECT_EQ(ops::argmax(mx::array({-INFINITY, -INFINITY}, {1, 2}), 2).item<int32_t>(), -1);
}

}  // namespace
}  // namespace tersor::ops
