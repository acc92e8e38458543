// The caches of a whole model: settings, skipped layers, reports, what they say about memory, degenerate tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/memory.h>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

using test::largest_error;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

TEST(KvSpec, OptionsOfTheCacheAreItsOwn) {
  const KvSpec spec = KvSpec::parse("affine:8,group=32,window=128,sinks=4,skip=0+1+-1");
  EXPECT_EQ(spec.keys.str(), "affine:8,group=32");
  EXPECT_EQ(spec.values, spec.keys);
  EXPECT_EQ(spec.window, 128);
  EXPECT_EQ(spec.sinks, 4);
  EXPECT_EQ(spec.skip, (std::vector<int>{0, 1, -1}));
  EXPECT_EQ(spec.str(), "affine:8,group=32,window=128,sinks=4,skip=0+1+-1");
  EXPECT_EQ(KvSpec::parse("turboquant:3,window=5,seed=9").keys.str(), "turboquant:3,seed=9");
}

TEST(KvSpec, KeysAndValuesMayDiffer) {
  const KvSpec spec = KvSpec::parse("turboquant:4,window=64", "affine:8,sinks=2");
  EXPECT_EQ(spec.keys.str(), "turboquant:4");
  EXPECT_EQ(spec.values.str(), "affine:8");
  EXPECT_EQ(spec.window, 64);
  EXPECT_EQ(spec.sinks, 2);
  EXPECT_EQ(KvSpec::parse("full,window=3", "affine:4,window=3").window, 3);
  for (const auto& [keys, values] :
       {std::pair{"full,window=3", "full,window=4"}, {"full,sinks=1", "full,sinks=0"}, {"full,skip=0", "full,skip=1"}})
    EXPECT_THROW(KvSpec::parse(keys, values), Error) << keys;
}

TEST(KvSpec, RefusalsNameTheSetting) {
  for (const char* text : {"", "window=8", "affine:4,window=", "affine:4,window=-1", "affine:4,window=x", "affine:4,window=1.5",
                           "affine:4,window=99999999999", "affine:4,sinks=-1", "affine:4,sinks", "affine:4,skip=", "affine:4,skip=1+",
                           "affine:4,skip=+1", "affine:4,skip=a", "affine:4,skip=1,2", "affine:4,Window=3", "affine:4,,window=3"})
    EXPECT_THROW(KvSpec::parse(text), Error) << text;
}

TEST(KvSpec, TheRecommendedSettingIsValid) {
  const KvSpec spec = KvSpec::recommended();
  EXPECT_NO_THROW(KvCache(spec, 2, {1, 3, 64, 64}, Dtype::f16, Policy::automatic));
  EXPECT_EQ(codec::Spec::parse(spec.keys.str()), spec.keys);
}

TEST(KvCache, GroupsAreNoLargerThanAHead) {
  const KvCache cache(KvSpec::parse("affine:4,group=128", "affine:8,group=32"), 2, {1, 2, 64, 64}, Dtype::f16, Policy::automatic);
  const LayerReport row = cache.report().front();
  EXPECT_EQ(row.keys_requested, "affine:4,group=128");
  EXPECT_EQ(row.keys, "affine:4");
  EXPECT_EQ(row.reason, "groups of 128 are cut to the head size of 64 (4.5 bits a number)");
  EXPECT_EQ(row.values, row.values_requested);
  const KvCache large(KvSpec::parse("affine:4,group=128"), 1, {1, 2, 128, 128}, Dtype::f16, Policy::automatic);
  EXPECT_EQ(large.report().front().reason, "");
}

TEST(KvCache, SkippedLayersAreFullPrecision) {
  const KvCache cache(KvSpec::parse("turboquant:4,window=8,skip=0+-1+-2"), 5, {1, 2, 64, 64}, Dtype::bf16, Policy::automatic);
  const std::vector<LayerReport> report = cache.report();
  ASSERT_EQ(report.size(), 5u);
  for (const LayerReport& row : report) {
    const bool skipped = row.layer == 0 || row.layer >= 3;
    EXPECT_EQ(row.keys_requested, "turboquant:4");
    EXPECT_EQ(row.keys, skipped ? "full" : "turboquant:4");
    EXPECT_EQ(row.values, skipped ? "full" : "turboquant:4");
    EXPECT_EQ(row.reason.empty(), !skipped);
    EXPECT_EQ(row.tokens, 0);
  }
}

TEST(KvCache, LayersThatDoNotExistAreRefused) {
  for (const char* skip : {"3", "-4", "100", "0+1+2+3"}) {
    try {
      KvCache(KvSpec::parse("affine:4,skip=" + std::string(skip)), 3, {1, 2, 64, 64}, Dtype::f16, Policy::automatic);
      ADD_FAILURE() << skip << " was taken";
    } catch (const Error& error) { EXPECT_THAT(error.what(), testing::HasSubstr("layers 0 to 2")); }
  }
}

TEST(KvCache, CodecsThatDoNotFitAreRefusedAtOnce) {
  const auto make = [](const char* keys, const char* values, int key_dim, int value_dim) {
    return KvCache(KvSpec::parse(keys, values), 3, {1, 2, key_dim, value_dim}, Dtype::f16, Policy::automatic);
  };
  EXPECT_THROW(make("turboquant:4", "turboquant:4", 2, 64), Error);
  EXPECT_THROW(make("affine:4", "qjl:64", 64, 64), Error);                    // no values
  EXPECT_THROW(make("affine:4", "affine:4,axis=channel", 64, 64), Error);     // channels are for keys
  EXPECT_THROW(make("vecinfer:2,sub=4", "vecinfer:2,sub=4", 64, 64), Error);  // no calibration
  EXPECT_THROW(make("turboquant:4,centre=calibrated", "turboquant:4", 64, 64), Error);
  EXPECT_NO_THROW(make("affine:4", "turboquant:4", 100, 100));
  EXPECT_NO_THROW(make("affine:4,axis=channel", "affine:4", 64, 64));
}

uint64_t array_bytes(const LayerCache& layer) {
  uint64_t sum = 0;
  for (const mx::array& array : layer.arrays()) sum += array.nbytes();
  return sum;
}

// A token's bytes in the body: codes and scalars of keys and values.
double token_bytes(const LayerCache& layer) {
  const ops::KvFormat& f = *layer.state().body_format;
  return static_cast<double>(f.head_bytes(f.granularity())) / f.granularity() * f.heads * f.batch;
}

// Reported bytes are those of the arrays, whichever way the tokens came, and no more than one growth step above what the tokens need.
TEST(KvCache, BytesAreThoseOfTheArrays) {
  const KvSpec spec = KvSpec::parse("turboquant:4,window=32,sinks=4,skip=1");
  const Setting setting;
  for (const int tokens : {1, 255, 256, 257, 1500}) {
    const Conversation talk(setting, tokens, 50);
    KvCache steps(spec, 2, setting.shape, Dtype::f16, Policy::automatic), whole(spec, 2, setting.shape, Dtype::f16, Policy::automatic);
    for (int i = 0; i < 2; ++i) {
      for (int t = 0; t < tokens; ++t) talk.append(steps.layer(i), t, 1);
      talk.attend(steps.layer(i), tokens - 1, 1);
      talk.run(whole.layer(i), 0, tokens, tokens);
    }
    for (const KvCache* cache : {&steps, &whole}) {
      uint64_t sum = 0;
      for (const LayerReport& row : cache->report()) {
        const LayerCache& layer = cache->layer(row.layer);
        EXPECT_EQ(row.bytes, array_bytes(layer));
        EXPECT_EQ(row.tokens, tokens);
        const double full = (kRewindMargin + 3 * kRecentBlockTokens + 32 + kSinkBlockTokens) * 2 * 64 * 2 * 2.0;
        EXPECT_LE(row.bytes, (tokens + std::max<int64_t>(kLeastStep, tokens / 4) + 64) * token_bytes(layer) + (row.layer == 0 ? full : 0));
        EXPECT_GE(row.bytes, tokens * token_bytes(layer));
        sum += row.bytes;
      }
      EXPECT_EQ(cache->bytes(), sum);
      EXPECT_EQ(cache->bytes_full(), 2ull * tokens * 2 * (64 + 64) * 2);
    }
  }
}

TEST(KvCache, BytesAreWhatTheAllocatorGave) {
  for (const char* text : {"turboquant:4,window=64,sinks=4", "full", "affine:3"}) {
    Setting setting;
    const Conversation talk(setting, 2000, 51);
    mx::synchronize();
    mx::clear_cache();
    const size_t before = mx::get_active_memory();
    KvCache cache(KvSpec::parse(text), 2, setting.shape, Dtype::f16, Policy::automatic);
    for (int i = 0; i < 2; ++i) talk.run(cache.layer(i), 0, 1990, 199), talk.run(cache.layer(i), 1990, 2000, 1);
    cache.eval();
    mx::synchronize();
    const double held = static_cast<double>(mx::get_active_memory() - before);
    EXPECT_NEAR(held, cache.bytes(), 0.02 * cache.bytes() + 65536) << text;
    if (std::string(text) != "full") { EXPECT_LT(held, 0.45 * cache.bytes_full()) << text; }
  }
}

TEST(KvCache, ReservedRoomIsExact) {
  const Setting setting;
  KvCache cache(KvSpec::parse("turboquant:4"), 2, setting.shape, Dtype::f16, Policy::automatic);
  cache.reserve(1000);
  EXPECT_EQ(cache.layer(0).bytes(), 1024 * token_bytes(cache.layer(0)));
  EXPECT_EQ(cache.tokens(), 0);
}

TEST(KvCache, RunsTheKernelsItReports) {
  const Setting setting;
  const KvCache fast(KvSpec::parse("turboquant:4,skip=0"), 3, setting.shape, Dtype::f16, Policy::automatic);
  const KvCache composed(KvSpec::parse("turboquant:4,skip=0"), 3, setting.shape, Dtype::f16, Policy::forbid);
  EXPECT_EQ(fast.choices().size(), 4u) << "append and attend of two kinds of layers";
  for (const ops::Choice& choice : composed.choices()) EXPECT_FALSE(choice.fast);
}

TEST(KvCache, AttendsInThePrecisionAskedFor) {
  const Setting setting;
  const auto attends = [&](const char* spec, ops::Precision precision) {
    for (const ops::Choice& choice : KvCache(KvSpec::parse(spec), 1, setting.shape, Dtype::f16, Policy::automatic, precision).choices())
      if (choice.op == "kv_attend") return choice;
    return ops::Choice{};
  };
  const ops::Choice integers = attends("turboquant:6", ops::Precision::int16), exact = attends("turboquant:6", ops::Precision::exact);
  EXPECT_EQ(integers.precision, ops::Precision::int16);
  EXPECT_TRUE(integers.kernel.starts_with("cpu/kv_attend_int16 ")) << integers.kernel;
  EXPECT_EQ(exact.precision, ops::Precision::exact);
  EXPECT_TRUE(exact.kernel.starts_with("cpu/kv_attend ")) << exact.kernel;
  EXPECT_EQ(attends("full", ops::Precision::int16).precision, ops::Precision::exact);
}

// Batches are independent: two conversations at once are what each is alone.
TEST(KvCache, BatchesAreIndependent) {
  for (const Policy policy : kPolicies) {
    Setting two{.keys = "turboquant:3", .values = "affine:4", .window = 20, .sinks = 3, .policy = policy};
    two.shape.batch = 2;
    const Conversation both(two, 90, 52);
    LayerCache cache = two.make();
    const Rows out = both.run(cache, 0, 90, 15);
    for (int b = 0; b < 2; ++b) {
      Setting one = two;
      one.shape.batch = 1;
      Conversation alone(one, 90, 0);
      for (const auto member : {&Conversation::k, &Conversation::v, &Conversation::q}) {
        const Rows& from = both.*member;
        std::copy_n(from.row(b, 0, 0), (alone.*member).data.size(), (alone.*member).data.begin());
      }
      LayerCache single = one.make();
      const Rows expected = alone.run(single, 0, 90, 15);
      Rows row(1, out.heads, 90, out.dim);
      std::copy_n(out.row(b, 0, 0), row.data.size(), row.data.begin());
      EXPECT_LE(largest_error(row, expected), 4e-5) << b;
    }
  }
}

// A token of zeros, NaN or infinity is stored as itself or cleaned; every later row is finite, and the other tokens' codes do not change.
TEST(KvCache, DegenerateTokensDoNotSpreadToOthers) {
  for (const Policy policy : kPolicies)
    for (const auto& [keys, values] : {std::pair{"turboquant:4", "turboquant:4"}, {"affine:4", "affine:8"}, {"turboquant:2", "full"}})
      for (const float bad : {0.0f, kNan, kInfinity, -kInfinity})
        for (const int window : {0, 16}) {
          const Setting setting{keys, values, window, 2, policy};
          SCOPED_TRACE(setting.str() + " " + std::to_string(bad));
          const Conversation clean(setting, 70, 53);
          Conversation spoiled = clean;
          const float cleaned = std::isnan(bad) ? 0 : std::clamp(bad, -65504.0f, 65504.0f);
          Conversation mended = clean;
          for (const int t : {0, 33, 68})
            for (int h = 0; h < 2; ++h) {
              std::fill_n(spoiled.k.row(0, h, t), 64, bad), std::fill_n(spoiled.v.row(0, h, t), 64, bad);
              std::fill_n(mended.k.row(0, h, t), 64, cleaned), std::fill_n(mended.v.row(0, h, t), 64, cleaned);
            }
          LayerCache a = setting.make(), b = setting.make(), c = setting.make();
          const Rows out = spoiled.run(a, 0, 70, 7);
          EXPECT_EQ(largest_error(out, mended.run(b, 0, 70, 7)), 0);
          clean.run(c, 0, 70, 7);
          const std::vector<float> numbers = body_numbers(a), expected = body_numbers(c);
          for (size_t i = 0; i < numbers.size(); ++i) {
            const size_t t = i / 64 % 70;
            if (t == 0 || t == 33 || t == 68) continue;
            ASSERT_EQ(numbers[i], expected[i]);
          }
        }
}

// A mask that hides a NaN token of a full-precision cache hides it entirely.
TEST(KvCache, HiddenTokensDoNotCount) {
  for (const Policy policy : kPolicies)
    for (const char* codec : {"full", "turboquant:4"}) {
      const Setting setting{.keys = codec, .values = codec, .policy = policy};
      const Conversation clean(setting, 40, 54);
      Conversation spoiled = clean;
      for (int h = 0; h < 2; ++h) std::fill_n(spoiled.k.row(0, h, 11), 64, kNan), std::fill_n(spoiled.v.row(0, h, 11), 64, kNan);
      std::vector<uint8_t> seen(40, 1);
      seen[11] = 0;
      AttendOptions options;
      options.mask = mx::astype(mx::array(seen.data(), {1, 40}, mx::uint8), mx::bool_);
      LayerCache a = setting.make(), b = setting.make();
      clean.append(a, 0, 40), spoiled.append(b, 0, 40);
      EXPECT_LE(largest_error(clean.attend(a, 39, 1, options), spoiled.attend(b, 39, 1, options)), 1e-6) << setting.str();
    }
}

}  // namespace
}  // namespace tersor::cache
