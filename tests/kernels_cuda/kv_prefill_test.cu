// Attention of many rows, against the plain reference of the codecs and attention in double precision.
#include <gtest/gtest.h>

#include "kv_problem.cuh"

namespace tersor::kernels::cuda {
namespace {

const std::vector<int> kPrefillDims = {64, 80, 96, 128};

// 16-bit queries, keys, weights and values: a few roundings of 2^-12 each beside those of the results' type.
double prefill_tolerance(const Problem& p) {
  return tolerance(p.keys, p.type) + (p.keys == "full" && p.full == Dtype::bf16 ? 3e-3 : 5e-4) + 5e-4 * std::max(1.0f, p.spread);
}

double error_of(std::mt19937& rng, Problem p) {
  p.attend.prefill = true;
  return run(rng, p);
}

TEST(KvPrefillCuda, EveryCodecAgreesWithDoublePrecision) {
  std::mt19937 rng(11);
  std::vector<std::pair<std::string, std::string>> pairs{{"full", "full"}};
  for (size_t i = 0; i < kTurbo.size(); ++i) pairs.emplace_back(kTurbo[i], kTurbo[3 - i]), pairs.emplace_back(kTurbo[i], kTurbo[i]);
  for (size_t i = 0; i < kAffine.size(); ++i) pairs.emplace_back(kAffine[i], kAffine[2 - i]), pairs.emplace_back(kAffine[i], kAffine[i]);
  pairs.insert(pairs.end(), kWide.begin(), kWide.end());
  for (const int dim : kPrefillDims)
    for (const auto& [keys, values] : pairs)
      for (const int group : {1, 4}) {
        Problem p{keys, values, dim};
        p.attend.group = group, p.attend.rows = 150, p.tokens = 333, p.type = Dtype::f16;
        EXPECT_LE(error_of(rng, p), prefill_tolerance(p)) << p.str();
      }
}

TEST(KvPrefillCuda, RandomShapesAgreeWithDoublePrecision) {
  std::mt19937 rng(12);
  for (int i = 0; i < 300; ++i) {
    Problem p = sample(rng);
    p.dim = pick(rng, kPrefillDims);
    p.attend.rows = std::min(p.tokens, pick<int>(rng, {1, 17, 33, 64, 100, 200}));
    if (!p.attend.mask.empty()) {
      p.attend.mask = normal(rng, static_cast<size_t>(p.attend.rows) * p.tokens);
      for (float& x : p.attend.mask)
        if (rng() % 3 == 0) x = -INFINITY;
    }
    if (p.keys == "full" && p.full == Dtype::bf16) p.type = Dtype::bf16;
    EXPECT_LE(error_of(rng, p), prefill_tolerance(p)) << i << ": " << p.str();
  }
}

TEST(KvPrefillCuda, RowsThatSeeNothingAreZero) {
  std::mt19937 rng(13);
  Problem p{"turboquant:4", "turboquant:4"};
  p.attend.rows = 70, p.attend.positions = p.tokens;
  p.attend.mask.assign(static_cast<size_t>(p.attend.rows) * p.tokens, -INFINITY);
  EXPECT_EQ(error_of(rng, p), 0);
}

// What stands in a buffer where no token has been written yet.
TEST(KvPrefillCuda, BytesBehindTheLastTokenDoNotMatter) {
  std::mt19937 rng(14);
  for (const auto& name : {"turboquant:6", "turboquant:4", "affine:4", "full"}) {
    const LayerCodecs codecs(name, name, 128, Dtype::f16);
    constexpr int kTokens = 75, kRows = 40;
    const DeviceRows k(normal(rng, kTokens * 128), 1, kTokens, 1, 128, Dtype::f16),
        v(normal(rng, kTokens * 128), 1, kTokens, 1, 128, Dtype::f16), q(normal(rng, kRows * 128), 1, kRows, 1, 128, Dtype::f16);
    const bool full = std::string(name) == "full";
    Slab clean(codecs, full, 1, 1, 128, 0), dirty(codecs, full, 1, 1, 128, 0);
    check(cudaMemset(dirty.tiles.get(), 0xff, dirty.tiles.size()), "fill");
    append(codecs, {&clean}, k, v, 0, kTokens);
    append(codecs, {&dirty}, k, v, 0, kTokens);
    AttendCase c;
    c.rows = kRows, c.position = kTokens - kRows, c.prefill = true;
    EXPECT_EQ(attend(codecs, {{&dirty}}, q, c, 1), attend(codecs, {{&clean}}, q, c, 1)) << name;
  }
}

TEST(KvPrefillCuda, NumbersOfVeryDifferentSizesAreKept) {
  std::mt19937 rng(15);
  for (const auto& name : {"turboquant:6", "turboquant:5", "turboquant:4", "turboquant:2", "affine:4", "full"})
    for (const float size : {1e-5f, 1.0f, 2e4f}) {
      const LayerCodecs codecs(name, name, 128, Dtype::f16);
      constexpr int kTokens = 2048, kDim = 128, kRows = 64;
      auto values = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.01f * size, 0.01f * size),
           keys = normal(rng, static_cast<size_t>(kTokens) * kDim, size);
      for (int d = 0; d < kDim; ++d) values[d] = values[100 * kDim + d] = std::min(50 * size, 6e4f);
      const DeviceRows k(keys, 1, kTokens, 1, kDim, Dtype::f32), v(values, 1, kTokens, 1, kDim, Dtype::f32),
          q(normal(rng, kRows * 4 * kDim, 1e3f), 1, kRows, 4, kDim, Dtype::f32);
      Slab slab(codecs, std::string(name) == "full", 1, 1, kTokens, 0);
      append(codecs, {&slab}, k, v, 0, kTokens);
      AttendCase c;
      c.group = 4, c.rows = kRows, c.position = kTokens - kRows, c.sliding_window = kTokens - kRows - 200, c.prefill = true;
      c.scale = 0.0884e-3f / size;
      EXPECT_LE(relative_error(attend(codecs, {{&slab}}, q, c, 1), Oracle(codecs, {{&slab}}).attend(q, c, 1)),
                size < 1 && std::string(name) == "full" ? 1e-2 : 3e-3)
          << name << " " << size;
    }
}

TEST(KvPrefillCuda, ManySmallWeightsBesideALargeOneAreKept) {
  std::mt19937 rng(16);
  const LayerCodecs codecs("turboquant:4", "turboquant:4", 128, Dtype::f16);
  constexpr int kTokens = 4096, kDim = 128, kRows = 32;
  auto keys = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.05f),
       values = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.5f, 1.0f);
  const auto one = normal(rng, kDim);
  std::vector<float> query;
  for (int i = 0; i < kRows; ++i) query.insert(query.end(), one.begin(), one.end());
  float norm = 0;
  for (const float x : one) norm += x * x;
  for (int d = 0; d < kDim; ++d) keys[d] = one[d] / norm * 105, values[d] = 0.25f;
  const DeviceRows k(keys, 1, kTokens, 1, kDim, Dtype::f32), v(values, 1, kTokens, 1, kDim, Dtype::f32),
      q(query, 1, kRows, 1, kDim, Dtype::f32);
  Slab slab(codecs, false, 1, 1, kTokens, 0);
  append(codecs, {&slab}, k, v, 0, kTokens);
  AttendCase c;
  c.rows = kRows, c.scale = 0.0884f, c.position = kTokens - kRows, c.prefill = true;
  EXPECT_LE(relative_error(attend(codecs, {{&slab}}, q, c, 1), Oracle(codecs, {{&slab}}).attend(q, c, 1)), 2e-3);
}

}  // namespace
}  // namespace tersor::kernels::cuda
