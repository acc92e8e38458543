// What appending writes: the codes of the plain reference, the same bytes however tokens arrive, nothing of other tokens.
#include <gtest/gtest.h>

#include <cstring>

#include "codec/scalar.h"
#include "ops/kv_cases.h"

namespace tersor::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

int a_dim(Random& random, const std::string& codec) {
  return pick<int>(random, is_turboquant(codec) ? std::vector<int>{32, 64, 72, 80, 96, 112, 128, 192, 256}
                                                : std::vector<int>{32, 64, 80, 96, 100, 128, 256});
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

mx::array heads_major(const Rows& rows, mx::Dtype dtype = mx::float32) { return arranged(rows, dtype, Arrangement::heads_major); }

uint16_t scalar_bits(const codec::Layout& layout, float value) {
  return layout.family == codec::Family::turboquant ? codec::encode_norm(value) : codec::encode_scale(value);
}

// Where a code differs from the reference's, the number must lie within 1e-5 of the border between the two.
void expect_tie(const codec::Codec& codec, std::span<const float> x, size_t d, int code, int reference, std::span<const float> scalars) {
  ASSERT_EQ(std::abs(code - reference), 1) << "dim " << d;
  if (codec.family() == codec::Family::affine) {
    const size_t g = d / codec.spec().group;
    const double at = (static_cast<double>(x[d]) - scalars[codec.groups() + g]) / scalars[g];
    EXPECT_NEAR(at, (code + reference) / 2.0, 1e-5 * std::max(1.0, std::abs(at))) << "dim " << d;
    return;
  }
  std::vector<double> y(x.begin(), x.end());
  codec.rotation()->apply(y);
  double norm2 = 0;
  for (const double v : y) norm2 += v * v;
  EXPECT_NEAR(y[d] * std::sqrt(codec.dim() / norm2), codec.thresholds()[std::min(code, reference)], 1e-5) << "dim " << d;
}

// The scalar that belongs to turboquant codes, whatever they are (codec.cpp).
float scalar_for(const codec::Codec& codec, std::span<const float> x, std::span<const codec::Code> codes) {
  std::vector<double> y(x.begin(), x.end());
  codec.rotation()->apply(y);
  double norm2 = 0, yc = 0, cc = 0;
  for (size_t d = 0; d < y.size(); ++d) {
    const double level = codec.levels()[codes[d]];
    norm2 += y[d] * y[d], yc += y[d] * level, cc += level * level;
  }
  return static_cast<float>(codec.role() == codec::Role::keys ? norm2 / yc : yc / cc);
}

// One token as stored against the reference's encoding of the same numbers.
void expect_reference(const codec::Layout& layout, const uint8_t* blocks, int token, std::span<const float> x) {
  const codec::Codec& codec = *layout.codec;
  std::vector<float> stored(layout.dim), expected(layout.dim);
  if (layout.family == codec::Family::full) {
    layout.get_full(blocks, token, stored);
    codec.roundtrip(x, expected);
    EXPECT_EQ(stored, expected);
    return;
  }
  std::vector<codec::Code> codes(layout.dim), reference(layout.dim);
  std::vector<float> scalars(layout.scalar_rows), reference_scalars(layout.scalar_rows);
  layout.get(blocks, token, codes, scalars);
  codec.encode(x, reference, reference_scalars);
  // A code on a border may fall to either side; the scalar then belongs to the codes as they are.
  if (codec.family() == codec::Family::turboquant && codes != reference) reference_scalars[0] = scalar_for(codec, x, codes);
  for (int i = 0; i < layout.scalar_rows; ++i)
    EXPECT_LE(std::abs(scalar_bits(layout, scalars[i]) - scalar_bits(layout, reference_scalars[i])), 1) << "scalar " << i;
  for (int d = 0; d < layout.dim; ++d)
    if (codes[d] != reference[d]) expect_tie(codec, x, d, codes[d], reference[d], scalars);
}

// Normal vectors of many magnitudes and the odd ones.
Rows all_kinds(Random& random, int batch, int heads, int tokens, int dim) {
  Rows rows = normal_rows(random, batch, heads, tokens, dim);
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int t = 0; t < tokens; ++t) {
        float* x = rows.row(b, h, t);
        switch (random() % 10) {
          case 0: std::fill(x, x + dim, 0.0f); break;
          case 1: std::fill(x, x + dim, 0.0f), x[random() % dim] = 1.5f; break;
          case 2: std::fill(x, x + dim, -0.7f); break;
          case 3:
            for (int d = 0; d < dim; ++d) x[d] *= 1e-6f;
            break;
          case 4: x[random() % dim] = 6e4f; break;
          case 5:
            for (int d = 0; d < dim; ++d) x[d] = std::abs(x[d]) + 3;
            break;
          default: break;
        }
      }
  return rows;
}

class KvEncodeCodec : public testing::TestWithParam<std::string> {};

TEST_P(KvEncodeCodec, EqualsTheReference) {
  Random random(std::hash<std::string>()(GetParam()) + 1);
  for (int i = 0; i < 4; ++i) {
    FormatOptions o{.keys = GetParam(),
                    .values = GetParam(),
                    .key_dim = a_dim(random, GetParam()),
                    .value_dim = a_dim(random, GetParam()),
                    .batch = 1,
                    .heads = 2};
    const int tokens = static_cast<int>(pick_between(random, 1, 90));
    const Rows k = all_kinds(random, 1, 2, tokens, o.key_dim), v = all_kinds(random, 1, 2, tokens, o.value_dim);
    const auto check = [&](const ops::Choice& choice, const std::string& what) {
      SCOPED_TRACE(what + " dims " + std::to_string(o.key_dim) + "/" + std::to_string(o.value_dim));
      KvSlab slab = KvSlab::make(make_format(o), tokens, 0);
      append(slab, heads_major(k), arranged(v, mx::float32, pick(random, kArrangements)), 0, tokens, choice);
      const auto bytes = bytes_of(slab);
      for (int h = 0; h < 2; ++h)
        for (int t = 0; t < tokens; ++t) {
          expect_reference(slab.format->keys, &bytes[blocks_at(slab, true, 0, h)], t, {k.row(0, h, t), static_cast<size_t>(o.key_dim)});
          expect_reference(slab.format->values, &bytes[blocks_at(slab, false, 0, h)], t,
                           {v.row(0, h, t), static_cast<size_t>(o.value_dim)});
        }
    };
    check(kComposed, "composed");
    on_every_target([&](const std::string& target) { check(kFast, target); });
  }
}

// The bytes before an append with the appended tokens put in by the plain reference are the bytes after it.
TEST_P(KvEncodeCodec, LeavesOtherTokensAlone) {
  Random random(std::hash<std::string>()(GetParam()) + 2);
  FormatOptions o{.keys = GetParam(),
                  .values = GetParam(),
                  .key_dim = a_dim(random, GetParam()),
                  .value_dim = a_dim(random, GetParam()),
                  .batch = 2,
                  .heads = 2};
  const auto put_again = [&](const codec::Layout& layout, const uint8_t* from, uint8_t* to, int token) {
    std::vector<codec::Code> codes(layout.dim);
    std::vector<float> numbers(std::max(layout.dim, layout.scalar_rows));
    if (layout.family == codec::Family::full) {
      layout.get_full(from, token, {numbers.data(), static_cast<size_t>(layout.dim)});
      layout.put_full(to, token, {numbers.data(), static_cast<size_t>(layout.dim)});
    } else {
      layout.get(from, token, codes, numbers);
      layout.put(to, token, codes, numbers);
    }
  };
  const auto check = [&](const ops::Choice& choice) {
    KvSlab slab = KvSlab::make(make_format(o), 200, 0);
    std::vector<uint8_t> before(slab.data.nbytes());
    for (uint8_t& byte : before) byte = static_cast<uint8_t>(random());
    slab.data = mx::array(before.data(), slab.data.shape(), mx::uint8);
    slab.count = pick_between(random, 0, 150);
    const int first = static_cast<int>(slab.count), count = static_cast<int>(pick_between(random, 1, 50));
    append(slab, heads_major(normal_rows(random, 2, 2, count, o.key_dim)), heads_major(normal_rows(random, 2, 2, count, o.value_dim)), 0,
           count, choice);
    const auto after = bytes_of(slab);
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 2; ++h)
        for (int t = first; t < first + count; ++t)
          for (const bool keys : {true, false}) {
            const size_t at = blocks_at(slab, keys, b, h);
            put_again(keys ? slab.format->keys : slab.format->values, &after[at], &before[at], t);
          }
    EXPECT_EQ(std::memcmp(before.data(), after.data(), after.size()), 0);
  };
  check(kComposed);
  on_every_target([&](const std::string&) { check(kFast); });
}

TEST_P(KvEncodeCodec, TheSameBytesHoweverTokensArrive) {
  Random random(std::hash<std::string>()(GetParam()) + 3);
  FormatOptions o{.keys = GetParam(),
                  .values = GetParam(),
                  .key_dim = a_dim(random, GetParam()),
                  .value_dim = a_dim(random, GetParam()),
                  .batch = 1,
                  .heads = 2};
  const int tokens = 150;
  const Rows rows_k = all_kinds(random, 1, 2, tokens, o.key_dim), rows_v = all_kinds(random, 1, 2, tokens, o.value_dim);
  const auto bytes = [&](const std::function<int64_t()>& step, const ops::Choice& choice) {
    KvSlab slab = KvSlab::make(make_format(o), tokens, 0);
    const mx::array k = arranged(rows_k, mx::float16, pick(random, kArrangements)),
                    v = arranged(rows_v, mx::float16, pick(random, kArrangements));
    while (slab.count < tokens) append(slab, k, v, slab.count, std::min<int64_t>(step(), tokens - slab.count), choice);
    return bytes_of(slab);
  };
  on_every_target([&](const std::string& target) {
    const auto at_once = bytes([] { return 1000; }, kFast);
    EXPECT_EQ(bytes([] { return 1; }, kFast), at_once) << target;
    EXPECT_EQ(bytes([&] { return pick_between(random, 1, 40); }, kFast), at_once) << target;
  });
  // A matrix product's rounding may depend on its number of rows, so rotated numbers are composed alike only up to ties.
  if (is_turboquant(GetParam())) return;
  EXPECT_EQ(bytes([&] { return pick_between(random, 1, 40); }, kComposed), bytes([] { return 1000; }, kComposed));
}

// NaN and infinities become numbers and stay within their token.
TEST_P(KvEncodeCodec, OddNumbersStayWithinTheirToken) {
  Random random(std::hash<std::string>()(GetParam()) + 4);
  FormatOptions o{.keys = GetParam(), .values = GetParam(), .key_dim = 64, .value_dim = 96};
  Rows k = normal_rows(random, 1, 1, 20, 64), v = normal_rows(random, 1, 1, 20, 96);
  const auto both = [&](const ops::Choice& choice) {
    KvSlab slab = KvSlab::make(make_format(o), 20, 0);
    append(slab, heads_major(k), heads_major(v), 0, 20, choice);
    return std::pair(decoded(slab, true), decoded(slab, false));
  };
  std::vector<std::pair<Rows, Rows>> clean, spoiled;
  for (auto* list : {&clean, &spoiled}) {
    list->push_back(both(kComposed));
    on_every_target([&](const std::string&) { list->push_back(both(kFast)); });
    k.row(0, 0, 7)[3] = kNan, k.row(0, 0, 7)[9] = kInfinity, v.row(0, 0, 7)[4] = -kInfinity, v.row(0, 0, 7)[40] = kNan;
  }
  for (size_t i = 0; i < clean.size(); ++i)
    for (const auto& [before, after] : {std::pair(&clean[i].first, &spoiled[i].first), std::pair(&clean[i].second, &spoiled[i].second)})
      for (int t = 0; t < 20; ++t)
        for (int d = 0; d < before->dim; ++d) {
          if (t == 7)
            EXPECT_TRUE(std::isfinite(after->row(0, 0, t)[d])) << d;
          else
            EXPECT_EQ(before->row(0, 0, t)[d], after->row(0, 0, t)[d]) << t << " " << d;
        }
}

// Vectors of magnitude 1e-6 keep as many digits as vectors of magnitude 1.
TEST_P(KvEncodeCodec, SmallNumbersKeepTheirDigits) {
  if (is_full(GetParam())) return;
  Random random(std::hash<std::string>()(GetParam()) + 5);
  FormatOptions o{.keys = GetParam(), .values = GetParam(), .key_dim = 128, .value_dim = 128};
  const Rows ones = normal_rows(random, 1, 1, 30, 128);
  const auto relative_error = [&](float magnitude, const ops::Choice& choice) {
    Rows rows = ones;
    for (float& x : rows.data) x *= magnitude;
    KvSlab slab = KvSlab::make(make_format(o), 30, 0);
    append(slab, heads_major(rows), heads_major(rows), 0, 30, choice);
    const Rows back = decoded(slab, false);
    double error2 = 0, norm2 = 0;
    for (int t = 0; t < 30; ++t) {
      std::vector<double> y(back.row(0, 0, t), back.row(0, 0, t) + 128);
      if (slab.format->basis->value_rotation) slab.format->basis->value_rotation->inverse(y);
      for (int d = 0; d < 128; ++d) {
        const double x = rows.row(0, 0, t)[d];
        error2 += (y[d] - x) * (y[d] - x), norm2 += x * x;
      }
    }
    return std::sqrt(error2 / norm2);
  };
  EXPECT_LE(relative_error(1e-6f, kComposed), 1.02 * relative_error(1, kComposed));
  on_every_target([&](const std::string&) { EXPECT_LE(relative_error(1e-6f, kFast), 1.02 * relative_error(1, kFast)); });
}

INSTANTIATE_TEST_SUITE_P(All, KvEncodeCodec, testing::ValuesIn(all_codecs()), test_name);

// A full slab beside a rotated one stores rotated numbers.
TEST(KvEncode, FullSlabInARotatedBasis) {
  Random random(21);
  FormatOptions o{.keys = "full:fp32", .values = "full:fp32", .key_dim = 96, .value_dim = 128, .rotated_like = "turboquant:4"};
  const Rows k = normal_rows(random, 1, 1, 9, 96), v = normal_rows(random, 1, 1, 9, 128);
  const auto check = [&](const ops::Choice& choice) {
    KvSlab slab = KvSlab::make(make_format(o), 9, 0);
    append(slab, heads_major(k), heads_major(v), 0, 9, choice);
    const Rows stored = decoded(slab, true);
    for (int t = 0; t < 9; ++t) {
      std::vector<double> y(k.row(0, 0, t), k.row(0, 0, t) + 96);
      slab.format->basis->key_rotation->apply(y);
      for (int d = 0; d < 96; ++d) EXPECT_NEAR(stored.row(0, 0, t)[d], y[d], 1e-5);
    }
  };
  check(kComposed);
  on_every_target([&](const std::string&) { check(kFast); });
}

// Several slabs in one append, as a cache with sinks and a window does.
TEST(KvEncode, OneAppendToSeveralSlabs) {
  Random random(22);
  FormatOptions compressed{.keys = "affine:4", .values = "affine:6"}, full{.keys = "full:fp16", .values = "full:fp16"};
  const Rows k = normal_rows(random, 1, 1, 33, 64), v = normal_rows(random, 1, 1, 33, 64);
  for (const auto& choice : {kFast, kComposed}) {
    KvSlab a = KvSlab::make(make_format(compressed), 40, 0), b = KvSlab::make(make_format(full), 16, 20);
    KvSlab expected_a = KvSlab::make(make_format(compressed), 40, 0), expected_b = KvSlab::make(make_format(full), 16, 20);
    const std::vector<KvWrite> writes{{&a, 0, 33, 3}, {&b, 20, 13, 2}};
    ops::kv_append(writes, heads_major(k), heads_major(v), std::nullopt, choice);
    expected_a.count = 3, expected_b.count = 2;
    append(expected_a, heads_major(k), heads_major(v), 0, 33, kFast);
    append(expected_b, heads_major(k), heads_major(v), 20, 13, kFast);
    EXPECT_EQ(bytes_of(a), bytes_of(expected_a));
    EXPECT_EQ(bytes_of(b), bytes_of(expected_b));
  }
}

}  // namespace
}  // namespace tersor::test
