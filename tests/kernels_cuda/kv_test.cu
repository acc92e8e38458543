// Encoding and attention over tiles of codes, against the plain reference of the codecs and attention in double precision.
#include <gtest/gtest.h>

#include "kv_problem.cuh"

namespace tersor::kernels::cuda {
namespace {

// Normal vectors of very different lengths, some of them zero or of one number only.
std::vector<float> varied(std::mt19937& rng, int vectors, int dim) {
  auto x = normal(rng, static_cast<size_t>(vectors) * dim);
  for (int i = 0; i < vectors; ++i) {
    const float scale = i % 11 == 5 ? 0.0f : std::pow(2.0f, static_cast<float>(static_cast<int>(rng() % 9)) - 5);
    for (int d = 0; d < dim; ++d)
      x[static_cast<size_t>(i) * dim + d] = i % 13 == 7 ? (d == 3 ? scale : 0) : x[static_cast<size_t>(i) * dim + d] * scale + 0.1f * scale;
  }
  return x;
}

struct Counts {
  size_t codes = 0, other_codes = 0, scalars = 0, other_scalars = 0;
};

// Compares one side of a slab with Codec::encode of the rows in memory. Sums in another order may move a number over a threshold, or the
// last digit of a scalar.
void compare_codes(const Slab& slab, bool keys, const DeviceRows& rows, Counts& counts) {
  const codec::Layout& layout = keys ? slab.keys : slab.values;
  const auto bytes = slab.tiles.read<uint8_t>();
  std::vector<codec::Code> stored(rows.dim), wanted(rows.dim);
  std::vector<float> stored_scalars(layout.scalar_rows), wanted_scalars(layout.scalar_rows);
  for (int b = 0; b < slab.batch; ++b)
    for (int h = 0; h < slab.heads; ++h)
      for (int t = 0; t < slab.count; ++t) {
        layout.get(&bytes[(b * slab.heads + h) * slab.head_bytes() + (keys ? 0 : slab.keys.block_bytes)], t, stored, stored_scalars);
        layout.codec->encode({rows.row(b, h, t), static_cast<size_t>(rows.dim)}, wanted, wanted_scalars);
        const bool zero = layout.family == codec::Family::turboquant && wanted_scalars[0] == 0;
        for (int d = 0; d < rows.dim && !zero; ++d) ++counts.codes, counts.other_codes += stored[d] != wanted[d];
        for (int s = 0; s < layout.scalar_rows; ++s) {
          ++counts.scalars, counts.other_scalars += stored_scalars[s] != wanted_scalars[s];
          ASSERT_LE(std::abs(stored_scalars[s] - wanted_scalars[s]), 0x1p-8f * std::abs(wanted_scalars[s]) + 1e-12f)
              << "token " << t << " row " << s;
        }
      }
}

TEST(KvAppendCuda, CodesAreThoseOfTheCodec) {
  std::mt19937 rng(1);
  for (const int dim : kDims)
    for (const auto& name : {"turboquant:1", "turboquant:2", "turboquant:3", "turboquant:4", "turboquant:4,rounds=1,seed=9", "turboquant:5",
                             "turboquant:6", "affine:2", "affine:4", "affine:8"}) {
      SCOPED_TRACE(std::string(name) + " D=" + std::to_string(dim));
      const LayerCodecs codecs(name, name, dim, Dtype::f16);
      const Dtype type = pick<Dtype>(rng, {Dtype::f16, Dtype::bf16, Dtype::f32});
      constexpr int kTokens = 203, kHeads = 2, kBatch = 2;
      const DeviceRows k(varied(rng, kBatch * kTokens * kHeads, dim), kBatch, kTokens, kHeads, dim, type),
          v(varied(rng, kBatch * kTokens * kHeads, dim), kBatch, kTokens, kHeads, dim, type);
      Slab slab(codecs, false, kBatch, kHeads, 256, 0);
      for (const int step : std::vector<int>{37, 1, 1, 1, 88, 1, 5, 69}) append(codecs, {&slab}, k, v, slab.count, step);
      check(cudaDeviceSynchronize(), "append");
      ASSERT_EQ(slab.count, kTokens);
      Counts counts;
      compare_codes(slab, true, k, counts);
      compare_codes(slab, false, v, counts);
      EXPECT_LE(counts.other_codes, counts.codes / 5000 + 2) << "of " << counts.codes;
      EXPECT_LE(counts.other_scalars, counts.scalars / 50 + 2) << "of " << counts.scalars;
    }
}

TEST(KvAppendCuda, FullTilesHoldRotatedNumbers) {
  std::mt19937 rng(2);
  for (const int dim : kDims)
    for (const Dtype full : {Dtype::f16, Dtype::bf16}) {
      const LayerCodecs codecs("turboquant:4", "turboquant:3", dim, full);
      constexpr int kTokens = 75;
      const DeviceRows k(normal(rng, kTokens * 2 * dim), 1, kTokens, 2, dim, Dtype::f32),
          v(normal(rng, kTokens * 2 * dim), 1, kTokens, 2, dim, Dtype::f32);
      Slab slab(codecs, true, 1, 2, 80, 0);
      for (const int step : std::vector<int>{3, 1, 60, 11}) append(codecs, {&slab}, k, v, slab.count, step);
      for (const bool keys : {true, false}) {
        std::vector<float> wanted;
        for (int h = 0; h < 2; ++h)
          for (int t = 0; t < kTokens; ++t) {
            const float* row = (keys ? k : v).row(0, h, t);
            std::vector<double> x(row, row + dim);
            (keys ? codecs.keys : codecs.values)->rotation()->apply(x);
            wanted.insert(wanted.end(), x.begin(), x.end());
          }
        EXPECT_LE(relative_error(slab.decoded(keys), wanted), full == Dtype::f16 ? 0x1p-11 : 0x1p-8) << dim;
      }
    }
}

TEST(KvAttendCuda, EveryKernelAgreesWithDoublePrecision) {
  std::mt19937 rng(3);
  std::vector<std::pair<std::string, std::string>> pairs{{"full", "full"}};
  for (const auto& k : kTurbo)
    for (const auto& v : kTurbo) pairs.emplace_back(k, v);
  for (const auto& k : kAffine)
    for (const auto& v : kAffine) pairs.emplace_back(k, v);
  pairs.insert(pairs.end(), kWide.begin(), kWide.end());
  for (const int dim : kDims)
    for (const auto& [keys, values] : pairs)
      for (const int group : {1, 3, 4, 8}) {
        Problem p{keys, values, dim};
        p.attend.group = group, p.tokens = 333, p.type = Dtype::f32;
        if (!attend_supports(*code_of(*LayerCodecs(keys, values, dim, p.full).keys),
                             *code_of(*LayerCodecs(keys, values, dim, p.full).values), dim)) {
          ADD_FAILURE() << "no kernel for " << p.str();
          continue;
        }
        EXPECT_LE(run(rng, p), tolerance(p.keys, p.type)) << p.str();
      }
}

TEST(KvAttendCuda, RandomShapesAgreeWithDoublePrecision) {
  std::mt19937 rng(4);
  for (int i = 0; i < 400; ++i) {
    const Problem p = sample(rng);
    EXPECT_LE(run(rng, p), tolerance(p.keys, p.type)) << i << ": " << p.str();
  }
}

TEST(KvAppendCuda, CentreIsSubtractedFromKeysAlone) {
  std::mt19937 rng(10);
  for (const auto& [keys, values] :
       {std::pair("turboquant:6", "turboquant:4"), std::pair("affine:4", "affine:4"), std::pair("full", "full")})
    for (const int dim : {64, 80, 128}) {
      constexpr int kTokens = 77, kHeads = 3, kBatch = 2;
      const LayerCodecs codecs(keys, values, dim, Dtype::f16);
      const auto centre = normal(rng, kBatch * kHeads * dim, 5);
      const auto k = normal(rng, kBatch * kTokens * kHeads * dim), v = normal(rng, k.size());
      auto moved = k, less = k;
      for (size_t i = 0; i < k.size(); ++i) {
        const size_t token = i / (kHeads * dim), in_token = i % (kHeads * dim);
        moved[i] += centre[token / kTokens * kHeads * dim + in_token];
        less[i] = moved[i] - centre[token / kTokens * kHeads * dim + in_token];
      }
      const DeviceRows from(moved, kBatch, kTokens, kHeads, dim, Dtype::f32), plain(less, kBatch, kTokens, kHeads, dim, Dtype::f32),
          other(v, kBatch, kTokens, kHeads, dim, Dtype::f32);
      const Buffer device(centre);
      const bool full = std::string(keys) == "full";
      Slab with(codecs, full, kBatch, kHeads, 128, 0), without(codecs, full, kBatch, kHeads, 128, 0);
      for (const int step : {70, 1, 6}) {
        append(codecs, {&with}, from, other, with.count, step, true, static_cast<const float*>(device.get()));
        append(codecs, {&without}, plain, other, without.count, step);
      }
      EXPECT_EQ(with.tiles.read<uint8_t>(), without.tiles.read<uint8_t>()) << keys << " " << dim;
    }
}

// One token takes nearly all the weight, the rest of it is spread over thousands whose weights are far below a byte's digits.
TEST(KvAttendCuda, ManySmallWeightsBesideALargeOneAreKept) {
  std::mt19937 rng(5);
  const LayerCodecs codecs("turboquant:4", "turboquant:4", 128, Dtype::f16);
  constexpr int kTokens = 8192, kDim = 128;
  auto keys = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.05f),
       values = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.5f, 1.0f);
  auto query = normal(rng, kDim);
  float norm = 0;
  for (const float x : query) norm += x * x;
  for (int d = 0; d < kDim; ++d) keys[d] = query[d] / norm * 105, values[d] = 0.25f;
  const DeviceRows k(keys, 1, kTokens, 1, kDim, Dtype::f32), v(values, 1, kTokens, 1, kDim, Dtype::f32),
      q(query, 1, 1, 1, kDim, Dtype::f32);
  Slab slab(codecs, false, 1, 1, kTokens, 0);
  append(codecs, {&slab}, k, v, 0, kTokens);
  AttendCase c;
  c.scale = 0.0884f, c.position = kTokens - 1;
  for (const int splits : {1, 7, 16}) {
    c.splits = splits;
    EXPECT_LE(relative_error(attend(codecs, {{&slab}}, q, c, 1), Oracle(codecs, {{&slab}}).attend(q, c, 1)), 1e-3) << splits;
  }
}

TEST(KvAttendCuda, ValuesOfVeryDifferentLengthsAreKept) {
  std::mt19937 rng(6);
  for (const auto& name : {"turboquant:6", "turboquant:5", "turboquant:4", "turboquant:2", "affine:4"}) {
    const LayerCodecs codecs(name, name, 128, Dtype::f16);
    constexpr int kTokens = 2048, kDim = 128;
    auto values = normal(rng, static_cast<size_t>(kTokens) * kDim, 0.01f, 0.01f);
    for (int d = 0; d < kDim; ++d) values[d] = 50;
    const DeviceRows k(normal(rng, static_cast<size_t>(kTokens) * kDim), 1, kTokens, 1, kDim, Dtype::f32),
        v(values, 1, kTokens, 1, kDim, Dtype::f32), q(normal(rng, 4 * kDim), 1, 1, 4, kDim, Dtype::f32);
    Slab slab(codecs, false, 1, 1, kTokens, 0);
    append(codecs, {&slab}, k, v, 0, kTokens);
    AttendCase c;
    c.group = 4, c.position = kTokens - 1, c.sliding_window = kTokens - 1;  // all but the long one, which lies in the first tile
    EXPECT_LE(relative_error(attend(codecs, {{&slab}}, q, c, 1), Oracle(codecs, {{&slab}}).attend(q, c, 1)), 1e-3) << name;
  }
}

// More tiles a warp than integer sums hold before they are folded.
TEST(KvAttendCuda, LongSharesOfWideValuesDoNotOverflow) {
  std::mt19937 rng(17);
  const LayerCodecs codecs("turboquant:6", "turboquant:6", 64, Dtype::f16);
  constexpr int kTokens = 200000, kDim = 64;
  const DeviceRows k(normal(rng, static_cast<size_t>(kTokens) * kDim, 0.01f), 1, kTokens, 1, kDim, Dtype::f16),
      v(normal(rng, static_cast<size_t>(kTokens) * kDim, 0.01f, 1.0f), 1, kTokens, 1, kDim, Dtype::f16),
      q(normal(rng, kDim), 1, 1, 1, kDim, Dtype::f32);
  Slab slab(codecs, false, 1, 1, kTokens, 0);
  append(codecs, {&slab}, k, v, 0, kTokens);
  AttendCase c;
  c.position = kTokens - 1, c.splits = 1;
  EXPECT_LE(relative_error(attend(codecs, {{&slab}}, q, c, 1), Oracle(codecs, {{&slab}}).attend(q, c, 1)), 1e-3);
}

TEST(KvAttendCuda, RowsThatSeeNothingAreZero) {
  std::mt19937 rng(7);
  Problem p{"turboquant:4", "turboquant:4"};
  p.attend.positions = p.tokens, p.attend.mask.assign(p.tokens, -INFINITY);
  EXPECT_EQ(run(rng, p), 0);
}

TEST(KvAttendCuda, InfinitiesAndNanInKeysAreStoredAsNumbers) {
  std::mt19937 rng(8);
  const LayerCodecs codecs("turboquant:6", "turboquant:4", 64, Dtype::f16);
  auto keys = normal(rng, 100 * 64), values = normal(rng, 100 * 64);
  keys[5] = INFINITY, keys[70] = NAN, values[3 * 64] = -INFINITY, values[9 * 64 + 3] = NAN;
  const DeviceRows k(keys, 1, 100, 1, 64, Dtype::f32), v(values, 1, 100, 1, 64, Dtype::f32), q(normal(rng, 64), 1, 1, 1, 64, Dtype::f32);
  Slab slab(codecs, false, 1, 1, 100, 0);
  append(codecs, {&slab}, k, v, 0, 100);
  AttendCase c;
  c.position = 99;
  const auto out = attend(codecs, {{&slab}}, q, c, 1);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  EXPECT_LE(relative_error(out, Oracle(codecs, {{&slab}}).attend(q, c, 1)), 1e-3);
}

// Tiles further than 2^31 numbers (and bytes) from the start of their buffer.
TEST(KvAttendCuda, OffsetsBeyondFourGigabytes) {
  std::mt19937 rng(9);
  const LayerCodecs codecs("affine:8", "affine:8", 128, Dtype::f16);
  constexpr int kBatch = 40, kHeads = 4, kCapacity = 100000, kTokens = 70;
  const DeviceRows k(normal(rng, static_cast<size_t>(kBatch) * kTokens * kHeads * 128), kBatch, kTokens, kHeads, 128, Dtype::f16),
      v(normal(rng, static_cast<size_t>(kBatch) * kTokens * kHeads * 128), kBatch, kTokens, kHeads, 128, Dtype::f16),
      q(normal(rng, static_cast<size_t>(kBatch) * kHeads * 128), kBatch, 1, kHeads, 128, Dtype::f16);
  Slab small(codecs, false, kBatch, kHeads, 128, 0), large(codecs, false, kBatch, kHeads, kCapacity, 0);
  ASSERT_GT(large.tiles.size(), size_t{1} << 32);
  append(codecs, {&small}, k, v, 0, kTokens);
  append(codecs, {&large}, k, v, 0, kTokens);
  AttendCase c;
  c.position = kTokens - 1;
  EXPECT_EQ(attend(codecs, {{&large}}, q, c, kHeads), attend(codecs, {{&small}}, q, c, kHeads));
}

}  // namespace
}  // namespace tersor::kernels::cuda
