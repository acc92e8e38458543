// Attention kernels by themselves: the exact arithmetic, the integer arithmetic's distance from it, and numbers that are not normal.
#include "kernels/cpu/kv_attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/kv_encode.h"
#include "kernels/cpu/simd_target.h"

namespace tersor::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

void on_every_target(const std::function<void()>& body) {
  for (const std::string& target : available_simd_targets()) {
    SCOPED_TRACE(target);
    force_simd_target(target);
    body();
  }
  force_simd_target("");
}

std::vector<float> normal(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

// One KV head with `group` query heads over `tokens` tokens; the last `rows` tokens ask.
struct Case {
  codec::Layout keys, values;
  int dim, group, tokens, rows;
  std::vector<uint8_t> blocks;
  std::vector<float> queries;
  bool causal = true;

  Case(const char* name, int d, int g, int t, int r, const std::vector<float>& k, const std::vector<float>& v)
      : keys(codec::Codec::make(codec::Spec::parse(name), codec::Role::keys, d)),
        values(codec::Codec::make(codec::Spec::parse(name), codec::Role::values, d)),
        dim(d),
        group(g),
        tokens(t),
        rows(r),
        blocks(keys.bytes(t) + values.bytes(t)),
        queries(normal(static_cast<size_t>(g) * r * d, 5)) {
    store(keys, blocks.data(), k);
    store(values, blocks.data() + keys.bytes(t), v);
  }

  std::vector<float> attend(bool exact, size_t threads = 1) const {
    KvSegment segment;
    segment.keys = &keys, segment.values = &values, segment.blocks = blocks.data();
    segment.values_offset = keys.bytes(tokens), segment.count = tokens;
    std::vector<float> out(queries.size());
    KvAttend p;
    p.batch = 1, p.heads = group, p.kv_heads = 1, p.rows = rows, p.key_dim = p.value_dim = dim;
    p.queries = {queries.data(), Dtype::f32, 0, int64_t{rows} * dim, dim};
    p.out = out.data(), p.out_head_stride = int64_t{rows} * dim, p.out_token_stride = dim;
    p.key_rotation = keys.codec->rotation(), p.value_rotation = values.codec->rotation();
    p.scale = 1 / std::sqrt(static_cast<float>(dim));
    p.causal = causal, p.position = tokens - rows, p.exact = exact;
    p.segments = &segment, p.segment_count = 1;
    const KvAttendPlan plan = kv_attend_plan(p, threads);
    std::vector<float> worker(plan.worker_floats + 16), partials(plan.partial_floats + 16);
    float* const scratch = worker.data() + (64 - reinterpret_cast<uintptr_t>(worker.data()) % 64) % 64 / sizeof(float);
    for (size_t i = 0; i < plan.items; ++i) kv_attend_item(p, plan, i, scratch, partials.data());
    for (size_t i = 0; i < plan.merges; ++i) kv_attend_merge(p, plan, i, scratch, partials.data());
    return out;
  }

  // In double, over what is stored.
  std::vector<double> oracle() const {
    const auto k = decoded(keys, blocks.data()), v = decoded(values, blocks.data() + keys.bytes(tokens));
    std::vector<double> out;
    for (int h = 0; h < group; ++h)
      for (int r = 0; r < rows; ++r) {
        std::vector<double> q(&queries[(h * rows + r) * dim], &queries[(h * rows + r) * dim] + dim), sum(dim), score(tokens);
        if (keys.codec->rotation()) keys.codec->rotation()->apply(q);
        double top = -kInfinity, total = 0;
        const int seen = causal ? tokens - rows + r + 1 : tokens;
        for (int t = 0; t < seen; ++t) {
          score[t] = std::inner_product(q.begin(), q.end(), &k[t * dim], 0.0) / std::sqrt(static_cast<double>(dim));
          top = std::max(top, score[t]);
        }
        for (int t = 0; t < seen; ++t) {
          const double weight = std::exp(score[t] - top);
          total += weight;
          for (int d = 0; d < dim; ++d) sum[d] += weight * v[t * dim + d];
        }
        for (double& s : sum) s /= total;
        if (values.codec->rotation()) values.codec->rotation()->inverse(sum);
        out.insert(out.end(), sum.begin(), sum.end());
      }
    return out;
  }

 private:
  std::vector<float> decoded(const codec::Layout& layout, const uint8_t* from) const {
    std::vector<float> x(tokens * dim);
    for (int t = 0; t < tokens; ++t) layout.decode(from, t, std::span(x).subspan(t * dim, dim));
    return x;
  }
  void store(const codec::Layout& layout, uint8_t* to, const std::vector<float>& x) const {
    KvEncode e;
    e.layout = &layout, e.rotation = layout.codec->rotation(), e.batch = e.heads = 1, e.tokens = tokens, e.blocks = to;
    e.rows = {x.data(), Dtype::f32, 0, 0, dim};
    for (size_t i = 0; i < kv_encode_tasks(e); ++i) kv_encode_task(e, i);
  }
};

double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(error / norm);
}

// The exact class is float arithmetic: sums of hundreds of rounded terms. The integer class rounds queries and weights in steps of
// 1 / 32639 of the largest. The root mean square of those errors is step / sqrt(12), which normal numbers (largest of 64: about 2.5
// deviations) turn into 2.5 / 32639 / sqrt(12) = 2.2e-5 of a score or an output; scores of unit deviation pass their error on whole,
// and outputs average it. 2e-4 leaves room for outputs that are small beside their terms.
TEST(KvAttendKernel, PrecisionClasses) {
  for (const char* codec :
       {"turboquant:1", "turboquant:2", "turboquant:3", "turboquant:4", "turboquant:5", "turboquant:6", "affine:2", "affine:3", "affine:4",
        "affine:5", "affine:6", "affine:8", "affine:8,group=32", "full:fp16", "full:bf16", "full:fp32"})
    for (const int dim : {64, 80, 112, 256})
      for (const int group : {1, 3, 5})
        for (const int rows : {1, 2, 40}) {
          SCOPED_TRACE(std::string(codec) + " dim " + std::to_string(dim) + " group " + std::to_string(group) + " rows " +
                       std::to_string(rows));
          const int tokens = 150;
          const Case c(codec, dim, group, tokens, rows, normal(tokens * dim, 1), normal(tokens * dim, 2));
          const std::vector<double> expected = c.oracle();
          on_every_target([&] {
            EXPECT_LE(relative_error(c.attend(true), expected), 3e-6);
            EXPECT_LE(relative_error(c.attend(false), expected), 2e-4);
            EXPECT_LE(relative_error(c.attend(false, 2), expected), 2e-4) << "split";
          });
        }
}

// Vectors of zeros have norm or scale 0; tokens with norms of very different size share a tile.
TEST(KvAttendKernel, ZerosAndScalesFarApart) {
  for (const char* codec : {"turboquant:6", "turboquant:5", "turboquant:4", "turboquant:2", "affine:4", "affine:8", "full:fp16"}) {
    SCOPED_TRACE(codec);
    const int dim = 64, tokens = 130;
    std::vector<float> k = normal(tokens * dim, 1), v = normal(tokens * dim, 2);
    const Case zeros(codec, dim, 3, tokens, 1, std::vector<float>(tokens * dim), std::vector<float>(tokens * dim));
    for (int t = 0; t < tokens; ++t)
      for (int d = 0; d < dim; ++d) {
        if (t % 3 == 0) k[t * dim + d] = v[t * dim + d] = 0;
        if (t % 7 == 1) v[t * dim + d] *= 1e4f;
        if (t % 11 == 2) v[t * dim + d] *= 1e-6f;
      }
    k[5 * dim + 3] = v[9 * dim + 8] = 6e4f;
    Case mixed(codec, dim, 3, tokens, 1, k, v);
    for (float& q : mixed.queries) q *= 1e-2f;  // or one token takes all the weight
    on_every_target([&] {
      for (const float x : zeros.attend(false)) EXPECT_EQ(x, 0);
      EXPECT_LE(relative_error(mixed.attend(false), mixed.oracle()), 2e-4);
    });
  }
}

// A query that is not finite spoils its own row only.
TEST(KvAttendKernel, OddQueriesStayInTheirRows) {
  for (const char* codec : {"turboquant:4", "turboquant:6", "affine:4", "full:fp16"})
    for (const float odd : {kNan, kInfinity, -kInfinity}) {
      SCOPED_TRACE(codec);
      const int dim = 64, tokens = 100;
      Case c(codec, dim, 3, tokens, 2, normal(tokens * dim, 1), normal(tokens * dim, 2));
      on_every_target([&] {
        Case spoiled = c;
        spoiled.queries[3 * dim + 7] = odd;
        const std::vector<float> clean = c.attend(false), out = spoiled.attend(false);
        EXPECT_TRUE(std::isnan(out[3 * dim]));
        for (size_t i = 0; i < out.size(); ++i) {
          if (i / dim != 3) { EXPECT_NEAR(out[i], clean[i], 1e-6); }
        }
      });
    }
}

// Queries beyond all measure still give an average of values.
TEST(KvAttendKernel, HugeAndTinyQueries) {
  for (const char* codec : {"turboquant:4", "turboquant:6", "affine:4", "full:fp16"})
    for (const float size : {1e-35f, 1e-20f, 1e6f, 1e15f}) {
      SCOPED_TRACE(std::string(codec) + " " + std::to_string(size));
      const int dim = 64, tokens = 70;
      Case c(codec, dim, 2, tokens, 1, normal(tokens * dim, 1), normal(tokens * dim, 2));
      for (float& q : c.queries) q *= size;
      on_every_target([&] {
        for (const float x : c.attend(false)) EXPECT_LE(std::abs(x), 10);
      });
    }
}

}  // namespace
}  // namespace tersor::kernels
