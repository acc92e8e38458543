// Saved caches: the same bytes however often, the same continuation, and an error for everything that does not fit or is damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/safetensors.h"
#include "cache/cache_cases.h"
#include "cache/header_edit.h"

namespace tersor::cache {
namespace {

using test::largest_error;
using testing::AllOf, testing::HasSubstr;

const Identity kModel{{"architecture", "llama"}, {"layers", "3"}, {"weights", "0123abcd"}};
constexpr int kLayers = 3;

class File : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tersor_cache_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

std::string content(const std::filesystem::path& path) { return read_file(path); }

void write(const std::filesystem::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// A model's cache with a conversation a layer.
struct Talks {
  Setting setting;
  std::vector<Conversation> layers;
  KvSpec spec;

  Talks(const std::string& keys, const std::string& values, const LayerShape& shape, Policy policy = Policy::automatic)
      : spec(KvSpec::parse(keys, values)) {
    setting.shape = shape, setting.query_heads = shape.kv_heads * 2, setting.policy = policy;
    for (int i = 0; i < kLayers; ++i) layers.emplace_back(setting, 260, 40 + i);
  }
  KvCache make() const { return KvCache(spec, kLayers, setting.shape, Dtype::f16, setting.policy); }
  std::vector<Rows> run(KvCache& cache, int begin, int end, int chunk) const {
    std::vector<Rows> out;
    for (int i = 0; i < kLayers; ++i) out.push_back(layers[i].run(cache.layer(i), begin, end, chunk));
    return out;
  }
};

const std::vector<std::pair<std::string, std::string>> kSpecs = {{"turboquant:4", "turboquant:4"},
                                                                 {"turboquant:6,window=24,sinks=4", "turboquant:5"},
                                                                 {"affine:8,group=32,window=100,sinks=20,skip=0+-1", "affine:3"},
                                                                 {"full", "full"},
                                                                 {"full:fp32", "affine:4,window=10"},
                                                                 {"turboquant:3,rounds=1,seed=77,sinks=300", "turboquant:2"},
                                                                 {"turboquant:4,centre=32,window=16", "turboquant-rvq:2+2"},
                                                                 {"qjl:128,sinks=4,window=20", "turboquant-prod:3"},
                                                                 {"mxfp8,centre=8", "mxfp4"},
                                                                 {"affine:4,group=32,axis=channel,sinks=4", "affine:4,rule=minmax"}};

TEST_F(File, SavedLoadedAndSavedAgainTwentyTimesGivesTheSameBytes) {
  for (const auto& [keys, values] : kSpecs) {
    SCOPED_TRACE(keys + " / " + values);
    const Talks talks(keys, values, {2, 2, 64, 64});
    KvCache cache = talks.make();
    talks.run(cache, 0, 150, 150), talks.run(cache, 150, 170, 1);
    cache.save(path("a"), kModel, {{"ids", "1,2,3"}, {"empty", ""}});
    const std::string first = content(path("a"));
    for (int i = 0; i < 20; ++i) {
      const KvCache::Loaded loaded = KvCache::load(path("a"), kModel, Policy::automatic);
      loaded.cache.save(path("a"), kModel, loaded.extra);
      ASSERT_EQ(content(path("a")), first) << i;
    }
  }
}

TEST_F(File, ContinuesAsIfNothingHadHappened) {
  for (const Policy policy : kPolicies)
    for (const auto& [keys, values] : kSpecs) {
      SCOPED_TRACE(keys + " / " + values);
      const Talks talks(keys, values, {1, 2, 64, 96}, policy);
      KvCache cache = talks.make();
      talks.run(cache, 0, 130, 65);
      cache.save(path("b"), kModel);
      KvCache loaded = KvCache::load(path("b"), kModel, policy).cache;
      EXPECT_EQ(loaded.tokens(), 130);
      EXPECT_EQ(loaded.layers(), kLayers);
      EXPECT_EQ(loaded.spec().str(), cache.spec().str());
      EXPECT_EQ(loaded.full_dtype(), Dtype::f16);
      for (int i = 0; i < kLayers; ++i) EXPECT_EQ(body_bytes(loaded.layer(i)), body_bytes(cache.layer(i)));
      const std::vector<Rows> a = talks.run(cache, 130, 160, 3), b = talks.run(loaded, 130, 160, 3);
      for (int i = 0; i < kLayers; ++i) {
        EXPECT_LE(largest_error(a[i], b[i]), 4e-5) << "layer " << i;
        EXPECT_EQ(body_bytes(loaded.layer(i)), body_bytes(cache.layer(i))) << "tokens once encoded stay as they are";
      }
      EXPECT_EQ(loaded.trim(5), 5);
      EXPECT_EQ(loaded.tokens(), 155);
    }
}

// A cache of two stages can be read by its first alone, and nothing else by another setting.
TEST_F(File, ReadByTheFirstStageAlone) {
  const Talks talks("turboquant-rvq:3+2,window=8", "turboquant:4", {1, 2, 64, 64});
  KvCache cache = talks.make();
  talks.run(cache, 0, 130, 65);
  cache.save(path("s"), kModel);
  const auto load = [&](const char* keys) {
    const KvSpec as = KvSpec::parse(keys, "turboquant:4");
    return KvCache::load(path("s"), kModel, Policy::automatic, ops::Precision::int16, {}, &as).cache;
  };
  KvCache first = load("turboquant-rvq:3+2,stages=1,window=8"), both = load("turboquant-rvq:3+2,window=8");
  EXPECT_EQ(first.spec().keys.stages, 1);
  const std::vector<Rows> all = talks.run(cache, 130, 140, 1), one = talks.run(first, 130, 140, 1), same = talks.run(both, 130, 140, 1);
  for (int i = 0; i < kLayers; ++i) {
    EXPECT_EQ(largest_error(same[i], all[i]), 0);
    EXPECT_GT(largest_error(one[i], all[i]), 1e-3) << "three bits are not five";
    EXPECT_LT(largest_error(one[i], all[i]), 1) << "but nearly";
  }
  EXPECT_THROW(load("turboquant-rvq:2+2,stages=1,window=8"), Error);
  EXPECT_THROW(load("turboquant-rvq:3+2,stages=1"), Error);
}

TEST_F(File, ManyTurns) {
  const Talks talks("turboquant:4,window=32,sinks=4", "turboquant:4", {1, 2, 64, 64});
  KvCache straight = talks.make(), turns = talks.make();
  for (int at = 0; at < 240; at += 30) {
    const std::vector<Rows> a = talks.run(straight, at, at + 30, 10), b = talks.run(turns, at, at + 30, 10);
    for (int i = 0; i < kLayers; ++i) EXPECT_LE(largest_error(a[i], b[i]), 4e-5) << at;
    turns.save(path("turn"), kModel);
    turns = KvCache::load(path("turn"), kModel, Policy::automatic).cache;
  }
  for (int i = 0; i < kLayers; ++i) EXPECT_EQ(body_bytes(turns.layer(i)), body_bytes(straight.layer(i)));
}

TEST_F(File, AfterTrimming) {
  const Talks talks("turboquant:4,window=32,sinks=4", "affine:4", {1, 2, 64, 64});
  KvCache cache = talks.make();
  talks.run(cache, 0, 200, 50);
  ASSERT_EQ(cache.trim(6), 6);
  cache.save(path("t"), kModel);
  KvCache loaded = KvCache::load(path("t"), kModel, Policy::automatic).cache;
  const std::vector<Rows> a = talks.run(cache, 194, 210, 4), b = talks.run(loaded, 194, 210, 4);
  for (int i = 0; i < kLayers; ++i) EXPECT_LE(largest_error(a[i], b[i]), 4e-5);
}

TEST_F(File, EmptyCachesAndExtraEntries) {
  const Talks talks("turboquant:4,window=8", "turboquant:4", {1, 2, 64, 64});
  const Identity extra{{"ids", "7 8 9"}, {"Schlüssel \"x\"", "line\nbreak\t\\ ünïcode"}};
  talks.make().save(path("e"), kModel, extra);
  KvCache::Loaded loaded = KvCache::load(path("e"), kModel, Policy::automatic);
  EXPECT_EQ(loaded.extra, extra);
  EXPECT_EQ(loaded.cache.tokens(), 0);
  KvCache cache = talks.make();
  const std::vector<Rows> a = talks.run(cache, 0, 20, 5), b = talks.run(loaded.cache, 0, 20, 5);
  for (int i = 0; i < kLayers; ++i) EXPECT_EQ(largest_error(a[i], b[i]), 0);
}

// Bytes of a small saved cache with a window and sinks.
std::string saved(const std::filesystem::path& path) {
  const Talks talks("turboquant:2,window=8,sinks=2", "affine:2", {1, 1, 64, 64});
  KvCache cache = talks.make();
  talks.run(cache, 0, 30, 10);
  cache.save(path, kModel, {{"ids", "1"}});
  return content(path);
}

void expect_refused(const std::filesystem::path& path, const Identity& model, const testing::Matcher<const char*>& message) {
  try {
    KvCache::load(path, model, Policy::automatic);
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), message);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST_F(File, TheFirstDifferingPropertyOfTheModelIsNamed) {
  saved(path("m"));
  Identity other = kModel;
  other["weights"] = "ffff", other["layers"] = "4";
  expect_refused(path("m"), other, AllOf(HasSubstr(path("m").string()), HasSubstr("layers"), HasSubstr("\"3\""), HasSubstr("\"4\"")));
  other["layers"] = "3";
  expect_refused(path("m"), other, AllOf(HasSubstr("weights"), HasSubstr("0123abcd"), HasSubstr("ffff")));
  Identity more = kModel;
  more["tokenizer"] = "x";
  expect_refused(path("m"), more, HasSubstr("tokenizer"));
}

TEST_F(File, WrongHeadersAreRefused) {
  const std::string good = saved(path("h"));
  const std::vector<std::tuple<std::string, std::string, std::string>> changes = {
      {R"("version":"2")", R"("version":"1")", "version 1"},
      {R"("version":"2")", R"("version":"")", "version"},
      {R"("format":"tersor-kv")", R"("format":"mlx")", "not a saved key/value cache"},
      {R"("tokens":"30")", R"("tokens":"3000000000")", "tokens"},
      {R"("tokens":"30")", R"("tokens":"-1")", "tokens"},
      {R"("tokens":"30")", R"("tokens":"16777216")", "expected"},
      {R"("tokens":"30")", R"("tokens":"90")", "body"},
      {R"("layers":"3")", R"("layers":"4")", "layers.3"},
      {R"("batch":"1")", R"("batch":"2")", "body"},
      {R"("batch":"1")", R"("batch":"0")", "batch"},
      {R"("key_dim":"64")", R"("key_dim":"100")", "layers.0.body"},
      {R"("key_dim":"64")", R"("key_dim":"0")", "head size"},
      {R"("kv_heads":"1")", R"("kv_heads":"65536")", "expected"},
      {R"("kv_heads":"1")", R"("kv_heads":"0")", ""},
      {R"("keys":"turboquant:2")", R"("keys":"turboquant:9")", "turboquant:9"},
      {R"("values":"affine:2")", R"("values":"affine:4")", "body"},
      {R"("window":"8")", R"("window":"-8")", "window"},
      {R"("window":"8")", R"("window":"99999999999")", "window"},
      {R"("sinks":"2")", R"("sinks":"1000000")", "sinks"},
      {R"("skip":"")", R"("skip":"7")", "layers 0 to 2"},
      {R"("recent_first":")", R"("recent_first":"x)", "recent_first"},
      {R"("full_dtype":"f16")", R"("full_dtype":"int8")", "int8"},
      {R"("full_dtype":"f16")", R"("full_dtype":"f32")", "expected"},
      {R"("layers.1.body")", R"("layers.1.bodY")", "layers.1.body"},
      {R"("layers.2.sinks")", R"("layers.2.sinkz")", "layers.2.sinks"},
      {R"("layers.0.recent")", R"("layers.0.recenT")", "layers.0.recent"}};
  for (const auto& [from, to, message] : changes) {
    SCOPED_TRACE(from + " -> " + to);
    write(path("w"), with(good, from, to));
    expect_refused(path("w"), kModel, HasSubstr(message));
  }
}

TEST_F(File, DamagedContentsAreRefused) {
  const std::string good = saved(path("h"));
  for (size_t back : {1, 100, 2000}) {
    std::string bad = good;
    bad[bad.size() - back] ^= 1;
    write(path("d"), bad);
    expect_refused(path("d"), kModel, HasSubstr("damaged"));
  }
  write(path("d"), good + "x");
  expect_refused(path("d"), kModel, HasSubstr("1 bytes follow"));
  write(path("d"), with(good, R"("tokens":"30")", R"("tokens":"29")"));
  expect_refused(path("d"), kModel, HasSubstr("damaged"));
}

// Sizes whose product wraps around to what a tensor has must not pass as that size.
TEST_F(File, SizesThatWrapAroundAreRefused) {
  safetensors::Tensor none{"layers.0.body", "U8", {65536, 0, 65536}, {}};
  const std::map<std::string, std::string> header{
      {"format", "tersor-kv"}, {"version", "2"},      {"keys", "full:fp16"}, {"values", "full:fp16"}, {"window", "0"},
      {"sinks", "0"},          {"full_dtype", "f16"}, {"layers", "1"},       {"tokens", "16777216"},  {"skip", ""},
      {"recent_first", "0"},   {"batch", "65536"},    {"kv_heads", "65536"}, {"key_dim", "1024"},     {"value_dim", "1024"}};
  safetensors::write(path("o"), {&none, 1}, header);
  EXPECT_THROW(KvCache::load(path("o"), {}, Policy::automatic), Error);
}

TEST_F(File, OtherFilesAreRefused) {
  EXPECT_THROW(KvCache::load(path("missing"), kModel, Policy::automatic), Error);
  EXPECT_THROW(KvCache::load(path("."), kModel, Policy::automatic), Error);
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string(1000, '\0'), std::string(1000, '\xff'), std::string("GGUF\3\0\0\0", 8)}) {
    write(path("x"), bytes);
    EXPECT_THROW(KvCache::load(path("x"), kModel, Policy::automatic), Error);
  }
  const std::vector<std::byte> data(8);
  safetensors::Tensor tensor{"weight", "F32", {2}, data};
  safetensors::write(path("model"), {&tensor, 1}, {{"format", "pt"}});
  expect_refused(path("model"), kModel, HasSubstr("not a saved key/value cache"));
  const KvCache cache = Talks("turboquant:4", "turboquant:4", {1, 1, 64, 64}).make();
  EXPECT_THROW(cache.save(path("no/such/folder/file"), kModel), Error);
}

TEST_F(File, TruncationIsRefusedEverywhere) {
  const std::string good = saved(path("t"));
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (size_t size = 0; size < good.size(); size += size < header + 16 ? 5 : 97) {
    write(path("cut"), good.substr(0, size));
    EXPECT_THROW(KvCache::load(path("cut"), kModel, Policy::automatic), Error) << size << " of " << good.size();
  }
  write(path("cut"), good.substr(0, good.size() - 1));
  EXPECT_THROW(KvCache::load(path("cut"), kModel, Policy::automatic), Error);
}

// A flipped byte in the header gives an error or a cache that can be used; nothing crashes or asks for absurd memory.
TEST_F(File, FlippedHeaderBytesNeverCrash) {
  const std::string good = saved(path("f"));
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  Random random(5);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bad = good;
    bad[random() % (header + 8)] ^= static_cast<char>(1 << (random() % 8));
    if (i % 3 == 0) bad[random() % (header + 8)] = static_cast<char>(random());
    write(path("flip"), bad);
    try {
      KvCache::Loaded loaded = KvCache::load(path("flip"), kModel, Policy::automatic);
      loaded.cache.eval();  // blanks and shapes, which the sizes stand for
    } catch (const Error&) { ++refused; }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tersor::cache
