// Attention over caches: the fast kernels, on every SIMD target, and the composed operations against double precision.
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "ops/kv_cases.h"

namespace tersor::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One sampled problem.
struct Problem {
  FormatOptions format;
  int group = 1, rows = 1;
  int64_t tokens = 1;
  bool split = false;  // sinks and recent tokens in full-precision slabs, as a cache keeps them
  int64_t sink_tokens = 0, window = 0;
  mx::Dtype dtype = mx::float32;
  Arrangement arrangement = Arrangement::tokens_major;
  AttendOptions options;
  std::vector<float> sinks;
  std::optional<FullMask> mask;

  int query_heads() const { return format.heads * group; }
  int64_t position() const { return tokens - rows; }
  std::string str() const {
    std::ostringstream text;
    text << format.keys << " / " << format.values << " dims " << format.key_dim << "/" << format.value_dim << " batch " << format.batch
         << " heads " << format.heads << "x" << group << " tokens " << tokens << " rows " << rows << " split " << split << " ("
         << sink_tokens << ", " << window << ") " << dtype << " arrangement " << static_cast<int>(arrangement) << " causal "
         << options.causal << " sliding " << options.sliding_window << " cap " << options.soft_cap << " sinks " << sinks.size();
    if (options.mask) text << " mask " << options.mask->shape() << " " << options.mask->dtype();
    return text.str();
  }
};

const std::vector<int64_t> kBoundaryLengths = {1, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 300, 1000};

int sample_dim(Random& random, bool any_size) {
  if (one_in(random, 4)) return pick<int>(random, any_size ? std::vector<int>{32, 72, 100, 112, 192} : std::vector<int>{32, 72, 112, 192});
  return pick<int>(random, {64, 80, 96, 128, 256});
}

// A mask in one of the shapes that broadcast, and what it stands for.
void sample_mask(Random& random, Problem& p) {
  const int b = p.format.batch, h = p.query_heads(), l = p.rows, s = static_cast<int>(p.tokens);
  const mx::Shape shape = pick<mx::Shape>(random, {{l, s}, {1, 1, l, s}, {b, 1, l, s}, {b, h, l, s}, {s}, {1, h, 1, s}});
  size_t size = 1;
  for (const int n : shape) size *= n;
  std::vector<float> values(size);
  const bool boolean = one_in(random, 2);
  std::normal_distribution<float> normal;
  for (float& x : values) x = one_in(random, 3) ? kMinusInfinity : boolean ? 0 : half_to_float(float_to_half(normal(random)));
  mx::array mask(values.data(), shape, mx::float32);
  if (boolean)
    mask = mx::greater(mask, mx::array(-1.0f));
  else
    mask = mx::astype(mask, pick<mx::Dtype>(random, {mx::float32, mx::float16}));
  p.options.mask = mask;
  p.mask.emplace(b, h, l, s);
  mx::array full = mx::contiguous(mx::broadcast_to(mx::array(values.data(), shape, mx::float32), {b, h, l, s}));
  full.eval();
  std::copy_n(full.data<float>(), p.mask->data.size(), p.mask->data.begin());
}

Problem sample(Random& random, const std::string& keys, const std::string& values) {
  Problem p;
  p.format.keys = keys, p.format.values = values;
  const bool any_size = !is_turboquant(keys) && !is_turboquant(values);
  p.format.key_dim = sample_dim(random, any_size);
  p.format.value_dim = one_in(random, 4) ? sample_dim(random, any_size) : p.format.key_dim;
  p.format.batch = one_in(random, 3) ? 2 : 1;
  p.format.heads = pick<int>(random, {1, 2, 3});
  p.group = pick<int>(random, {1, 3, 4, 8});
  p.tokens = one_in(random, 2) ? pick(random, kBoundaryLengths) : pick_between(random, 1, 200);
  const int64_t work = p.tokens * p.format.batch * p.query_heads() * p.format.key_dim;
  p.rows = static_cast<int>(std::min({p.tokens, pick<int64_t>(random, {1, 1, 2, 5, 16, 33}), std::max<int64_t>(1, 3000000 / work)}));
  p.dtype = pick<mx::Dtype>(random, {mx::float32, mx::float32, mx::float16, mx::bfloat16});
  p.arrangement = pick(random, kArrangements);
  p.options.causal = !one_in(random, 3);
  if (one_in(random, 3)) p.options.sliding_window = static_cast<int>(pick_between(random, 1, p.tokens + 5));
  if (one_in(random, 4)) p.options.soft_cap = pick<float>(random, {0.5f, 5.0f, 30.0f});
  if (one_in(random, 3)) p.options.scale = 0.7f / std::sqrt(static_cast<float>(p.format.key_dim));
  if (one_in(random, 3)) sample_mask(random, p);
  if (one_in(random, 3)) {
    for (int h = 0; h < p.query_heads(); ++h) p.sinks.push_back(pick<float>(random, {-30, 0, 3, 30}));
    p.options.sinks = mx::array(p.sinks.data(), {p.query_heads()}, mx::float32);
  }
  p.split = one_in(random, 3);
  p.sink_tokens = pick_between(random, 0, std::min<int64_t>(p.tokens, 20)), p.window = pick_between(random, 0, 90);
  return p;
}

// The slabs of a problem and how attention reads them. Sinks and the last `window` tokens of a row lie in full-precision slabs of the
// same basis; the codec's slab holds all tokens.
struct Cache {
  std::vector<KvSlab> slabs;
  std::vector<KvRead> reads;
  Cache(const Problem& p, const mx::array& k, const mx::array& v) {
    const auto format = make_format(p.format);
    slabs.push_back(KvSlab::make(format, p.tokens, 0));
    append(slabs[0], k, v, 0, p.tokens, kFast);
    if (p.split) add_full(p, *format, k, v);
    for (const KvSlab& slab : slabs) reads.push_back({&slab, {}, {}, {}, {}});
    if (!p.split) return;
    reads[0].lo_abs = p.sink_tokens, reads[0].hi_rel = 1 - p.window;
    reads[1].hi_abs = p.sink_tokens;
    reads[2].lo_abs = p.sink_tokens, reads[2].lo_rel = 1 - p.window;
  }

 private:
  void add_full(const Problem& p, const KvFormat& like, const mx::array& k, const mx::array& v) {
    FormatOptions o = p.format;
    o.keys = o.values = "full:fp32";
    const auto plain = make_format(o);
    auto format = std::make_shared<KvFormat>(like.basis, plain->keys.codec, plain->values.codec);
    format->batch = plain->batch, format->heads = plain->heads, format->sanitise = plain->sanitise;
    slabs.push_back(KvSlab::make(format, std::max<int64_t>(1, p.sink_tokens), 0));
    append(slabs[1], k, v, 0, p.sink_tokens, kFast);
    const int64_t recent = std::min(p.tokens, p.window + p.rows);
    slabs.push_back(KvSlab::make(format, std::max<int64_t>(1, recent), p.tokens - recent));
    append(slabs[2], k, v, p.tokens - recent, recent, kFast);
  }
};

double tolerance(mx::Dtype dtype) { return dtype == mx::float32 ? 1e-5 : dtype == mx::float16 ? 2e-3 : 1.2e-2; }

// What 16-bit queries and weights may change. Integers reach N = 32639.
// Queries: a rotated, scaled query is rounded in steps of max|q| / N, so a score errs by at most s = max|q| / 2N * sum|k|; weights then
// change by factors within e^(+-2s), outputs by at most (e^2s - 1) max|v|. (A soft cap only shrinks s.)
// Weights: token t's code counts p_t f_t, where f is its norm or scale, rounded in steps of max(p f) / N over 64 tokens. A number of a
// tile errs by at most 64 * max(p f) / 2N * c, c the largest code or level, and the maxima of p over all tiles sum to at most 1:
// 32 / N * max f * c in all. That is checked against the root of 64 terms of variance 1/12 instead, at eight deviations; the sum over
// the dimensions that a rotation mixes changes nothing, for errors there are independent.
double integer_tolerance(const Problem& p, const Rows& q, const std::vector<KvRead>& reads, const Oracle& oracle) {
  constexpr double kTop = 32639;
  const FormatOptions& f = p.format;
  const double scale = p.options.scale != 0 ? p.options.scale : 1 / std::sqrt(static_cast<double>(f.key_dim));
  double query = 0, key = 0, weight = 0;
  for (int b = 0; b < q.batch; ++b)
    for (int h = 0; h < q.heads; ++h)
      for (int t = 0; t < q.tokens; ++t) {
        std::vector<double> row(q.row(b, h, t), q.row(b, h, t) + q.dim);
        if (reads[0].slab->format->basis->key_rotation) reads[0].slab->format->basis->key_rotation->apply(row);
        for (const double x : row) query = std::max(query, std::abs(x) * scale);
      }
  const Rows keys = decoded(*reads[0].slab, true);
  for (size_t i = 0; i < keys.data.size(); i += keys.dim)
    key =
        std::max(key, std::accumulate(&keys.data[i], &keys.data[i] + keys.dim, 0.0, [](double sum, float x) { return sum + std::abs(x); }));
  weight = largest_code_value(*reads[0].slab);
  const bool integer_keys = !is_full(f.keys), integer_values = !is_full(f.values);
  const double score = integer_keys ? query / (2 * kTop) * key : 0;
  return (std::exp(2 * score) - 1) * oracle.largest_value() + (integer_values ? 8 * std::sqrt(64.0 / 12) / kTop * weight : 0);
}

void check(Random& random, const Problem& p) {
  SCOPED_TRACE(p.str());
  const FormatOptions& f = p.format;
  const Rows k = normal_rows(random, f.batch, f.heads, static_cast<int>(p.tokens), f.key_dim),
             v = normal_rows(random, f.batch, f.heads, static_cast<int>(p.tokens), f.value_dim);
  Rows q = normal_rows(random, f.batch, p.query_heads(), p.rows, f.key_dim);
  round_to(q, p.dtype);
  const Cache cache(p, arranged(k, p.dtype, p.arrangement), arranged(v, p.dtype, pick(random, kArrangements)));
  const Oracle oracle(cache.reads, p.options);
  const Rows expected = oracle.attend(q, p.position(), p.mask ? &*p.mask : nullptr, p.sinks);
  const double limit = tolerance(p.dtype) * std::max(1.0, oracle.largest_value());
  const double fast_limit = limit + integer_tolerance(p, q, cache.reads, oracle);
  const auto attend = [&](const ops::Choice& choice) {
    const mx::array query = arranged(q, p.dtype, p.arrangement);
    return rows_of(ops::kv_attend(query, cache.reads, p.options, p.position(), choice).out, p.query_heads(), f.value_dim);
  };
  EXPECT_LE(largest_error(attend(kComposed), expected), limit) << "composed";
  EXPECT_LE(largest_error(attend(kExact), expected), limit) << "exact";
  on_every_target([&](const std::string& target) { EXPECT_LE(largest_error(attend(kFast), expected), fast_limit) << target; });
}

class KvAttendCodec : public testing::TestWithParam<std::string> {};

TEST_P(KvAttendCodec, MatchesDouble) {
  Random random(std::hash<std::string>()(GetParam()));
  for (int i = 0; i < 12; ++i) check(random, sample(random, GetParam(), GetParam()));
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, KvAttendCodec, testing::ValuesIn(all_codecs()), test_name);

TEST(KvAttend, MixedCodecsMatchDouble) {
  Random random(11);
  const auto codecs = all_codecs();
  for (int i = 0; i < 60; ++i) {
    const std::string keys = pick(random, codecs), values = pick(random, codecs);
    check(random, sample(random, keys, values));
  }
}

TEST(KvAttend, EveryBoundaryLength) {
  Random random(12);
  for (const char* codec : {"full:fp16", "affine:4,group=32", "affine:5", "turboquant:3", "turboquant:4", "turboquant:6"})
    for (const int64_t tokens : kBoundaryLengths) {
      Problem p;
      p.format.keys = p.format.values = codec;
      p.format.heads = 2, p.group = 2;
      p.tokens = tokens;
      for (const int rows : {1, 2, 17}) {
        p.rows = static_cast<int>(std::min<int64_t>(rows, tokens));
        check(random, p);
      }
    }
}

TEST(KvAttend, ManyQueryRows) {
  Random random(13);
  for (const char* codec : {"full:fp32", "affine:8", "turboquant:4"}) {
    Problem p;
    p.format.keys = p.format.values = codec;
    p.tokens = 500, p.rows = 300;
    check(random, p);
    p.options.sliding_window = 70;
    check(random, p);
  }
}

// Reads of which rows see nothing, wholly or in part.
TEST(KvAttend, RowsThatSeeNothingGiveZeros) {
  Random random(14);
  for (const char* codec : {"full:fp16", "affine:4", "turboquant:4"}) {
    FormatOptions o{.keys = codec, .values = codec};
    KvSlab slab = KvSlab::make(make_format(o), 40, 0);
    append(slab, arranged(normal_rows(random, 1, 1, 40, 64), mx::float32, Arrangement::heads_major),
           arranged(normal_rows(random, 1, 1, 40, 64), mx::float32, Arrangement::heads_major), 0, 40, kFast);
    const mx::array q = arranged(normal_rows(random, 1, 2, 4, 64), mx::float32, Arrangement::heads_major);
    const std::vector<KvRead> reads{{&slab, 10, {}, {}, {}}};  // rows at positions 7, 8, 9 see nothing, the one at 10 sees one token
    AttendOptions hidden;
    hidden.mask = mx::array({false});
    AttendOptions with_sinks = hidden;
    with_sinks.sinks = mx::array({0.0f, kMinusInfinity});
    for (const auto& choice : {kFast, kComposed}) {
      const Rows some = rows_of(ops::kv_attend(q, reads, {}, 7, choice).out, 2, 64);
      for (int h = 0; h < 2; ++h)
        for (int t = 0; t < 4; ++t)
          EXPECT_EQ(std::all_of(some.row(0, h, t), some.row(0, h, t) + 64, [](float x) { return x == 0; }), t < 3);
      for (const AttendOptions& options : {hidden, with_sinks}) {
        const Rows none = rows_of(ops::kv_attend(q, reads, options, 36, choice).out, 2, 64);
        for (const float x : none.data) EXPECT_EQ(x, 0);
      }
    }
  }
}

// NaN and infinities that were stored unsanitised reach only the rows that see them.
TEST(KvAttend, HiddenNanDoesNotSpread) {
  Random random(15);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const char* codec : {"full:fp16", "full:bf16", "full:fp32"})
    for (const float odd : {nan, infinity, -infinity}) {
      FormatOptions o{.keys = codec, .values = codec, .key_dim = 80, .value_dim = 80, .sanitise = false};
      Rows k = normal_rows(random, 1, 1, 70, 80), v = normal_rows(random, 1, 1, 70, 80);
      const auto cache = [&] {
        KvSlab slab = KvSlab::make(make_format(o), 70, 0);
        append(slab, arranged(k, mx::float32, Arrangement::heads_major), arranged(v, mx::float32, Arrangement::heads_major), 0, 70, kFast);
        return slab;
      };
      const KvSlab clean = cache();
      k.row(0, 0, 66)[3] = odd, v.row(0, 0, 66)[5] = odd;
      const KvSlab spoiled = cache();
      AttendOptions masked;  // hides token 66 from the row at its position and later ones
      std::vector<float> mask(70, 0.0f);
      mask[66] = kMinusInfinity;
      masked.mask = mx::array(mask.data(), {70}, mx::float32);
      AttendOptions boolean;
      boolean.mask = mx::greater(*masked.mask, mx::array(-1.0f));
      const mx::array q = arranged(normal_rows(random, 1, 3, 5, 80), mx::float32, Arrangement::heads_major);
      const auto attend = [&](const KvSlab& slab, const AttendOptions& options, const ops::Choice& choice) {
        const std::vector<KvRead> reads{{&slab, {}, {}, {}, {}}};
        return rows_of(ops::kv_attend(q, reads, options, 63, choice).out, 3, 80);
      };
      for (const auto& choice : {kFast, kComposed}) {
        for (const AttendOptions& options : {masked, boolean})
          EXPECT_LE(largest_error(attend(spoiled, options, choice), attend(clean, options, choice)), 1e-6);
        const Rows causal = attend(spoiled, {}, choice), expected = attend(clean, {}, choice);
        for (int h = 0; h < 3; ++h)
          for (int t = 0; t < 3; ++t)
            for (int d = 0; d < 80; ++d) EXPECT_NEAR(causal.row(0, h, t)[d], expected.row(0, h, t)[d], 1e-6);
      }
    }
}

TEST(KvAttend, WrongShapesThrow) {
  FormatOptions o;
  KvSlab slab = KvSlab::make(make_format(o), 4, 0);
  const mx::array k = mx::zeros({1, 1, 4, 64});
  append(slab, k, k, 0, 4, kFast);
  const std::vector<KvRead> reads{{&slab, {}, {}, {}, {}}};
  for (const auto& choice : {kFast, kComposed}) {
    EXPECT_THROW(ops::kv_attend(mx::zeros({1, 1, 4, 32}), reads, {}, 0, choice), std::invalid_argument);
    EXPECT_THROW(ops::kv_attend(mx::zeros({2, 1, 4, 64}), reads, {}, 0, choice), std::invalid_argument);
    EXPECT_THROW(ops::kv_attend(mx::zeros({1, 1, 4, 64}, mx::int32), reads, {}, 0, choice), std::invalid_argument);
    EXPECT_THROW(ops::kv_attend(k, {}, {}, 0, choice), std::invalid_argument);
    AttendOptions options;
    options.mask = mx::zeros({4, 5});
    EXPECT_THROW(ops::kv_attend(k, reads, options, 0, choice), std::invalid_argument);
    options = {};
    options.sinks = mx::zeros({2});
    EXPECT_THROW(ops::kv_attend(k, reads, options, 0, choice), std::invalid_argument);
    const KvWrite outside{&slab, 0, 4, slab.capacity - 3}, good{&slab, 0, 1, 0};
    EXPECT_THROW(ops::kv_append({&outside, 1}, k, k, std::nullopt, choice), std::invalid_argument);
    EXPECT_THROW(ops::kv_append(std::vector<KvWrite>{good, good}, k, k, std::nullopt, choice), std::invalid_argument);
    EXPECT_THROW(ops::kv_append({&good, 1}, k, mx::zeros({1, 1, 3, 64}), std::nullopt, choice), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tersor::test
