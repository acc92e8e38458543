// Saved calibrations: they come back as they were, and whatever is damaged, cut or of another model is refused in one line.
#include "cache/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "cache/full_vectors.h"
#include "cache/header_edit.h"
#include "codec/calibrate.h"

namespace tersor::cache {
namespace {

using codec::Role;
using testing::HasSubstr;

const Identity kModel{{"family", "llama"}, {"weights", "0123abcd"}};
constexpr int kDim = 32, kHeads = 2, kLayers = 3;

class CalibrationFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tersor_calibration_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path(const std::string& name = "c") const { return folder_ / name; }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }

 private:
  std::filesystem::path folder_;
};

std::vector<float> normal_vectors(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count) * kDim);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<codec::Calibration> heads_of(const codec::Spec& spec, Role role, unsigned seed) {
  std::vector<codec::Calibration> heads;
  for (int h = 0; needs_calibration(spec, role) && h < kHeads; ++h)
    heads.push_back(codec::calibrate(spec, role, kDim, normal_vectors(300, seed + static_cast<unsigned>(h))).calibration);
  for (codec::Calibration& head : heads) keep_needed(spec, role, head);
  return heads;
}

SavedCalibration make(const std::string& keys, const std::string& values, int layers = kLayers) {
  SavedCalibration c;
  c.keys = codec::Spec::parse(keys), c.values = codec::Spec::parse(values);
  c.shape = {1, kHeads, kDim, kDim}, c.layers = kLayers;
  c.model = kModel, c.run = {{"seed", "0"}, {"tokens", "300"}};
  for (int i = 0; i < layers; ++i)
    c.done.push_back({heads_of(c.keys, Role::keys, 10u * static_cast<unsigned>(i)),
                      heads_of(c.values, Role::values, 1000 + 10u * static_cast<unsigned>(i))});
  return c;
}

void expect_refused(const std::filesystem::path& path, const Identity* model, const std::string& words) {
  try {
    load_calibration(path, model);
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST_F(CalibrationFile, HoldsWhatEveryCodecNeedsAndGivesTheSameCache) {
  for (const auto& [keys, values] : std::vector<std::pair<std::string, std::string>>{{"vecinfer:2,sub=4", "vecinfer:2,sub=4"},
                                                                                     {"turboquant:2.5", "turboquant:3.5"},
                                                                                     {"qjl:128,outliers=8", "affine:4"},
                                                                                     {"turboquant:4,centre=calibrated", "turboquant:4"},
                                                                                     {"full", "vecinfer:4,sub=2"}}) {
    SCOPED_TRACE(keys + " / " + values);
    const SavedCalibration made = make(keys, values);
    save_calibration(path(), made);
    const SavedCalibration back = load_calibration(path(), &kModel);
    EXPECT_TRUE(back.complete());
    EXPECT_TRUE(back.keys == made.keys && back.values == made.values && back.shape == made.shape);
    EXPECT_EQ(back.run, made.run);
    ASSERT_EQ(back.done.size(), made.done.size());
    EXPECT_EQ(back.done[1].keys.size(), needs_calibration(made.keys, Role::keys) ? kHeads : 0);
    EXPECT_EQ(back.done[1].values.size(), needs_calibration(made.values, Role::values) ? kHeads : 0);
    const KvSpec spec = KvSpec::parse(keys, values);
    KvCache cache(spec, kLayers, made.shape, Dtype::f16, ops::Policy::automatic, ops::Precision::int16, back.done);
    cache.save(path("kv"), kModel);
    EXPECT_EQ(KvCache::saved_spec(path("kv")).str(), spec.str());
    EXPECT_EQ(KvCache::load(path("kv"), kModel, ops::Policy::automatic, ops::Precision::int16, back.done).cache.tokens(), 0);
    EXPECT_THROW(KvCache::load(path("kv"), kModel, ops::Policy::automatic), Error);
    cache.copy().save(path("copy"), kModel);
    EXPECT_EQ(read_file(path("copy")), read_file(path("kv")));
    const std::string bytes = read_file(path());
    save_calibration(path(), back);
    EXPECT_EQ(read_file(path()), bytes);
  }
}

TEST_F(CalibrationFile, AnInterruptedOneHoldsItsFirstLayers) {
  const SavedCalibration made = make("turboquant:2.5", "turboquant:2.5", 2);
  save_calibration(path(), made);
  const SavedCalibration back = load_calibration(path(), &kModel);
  EXPECT_FALSE(back.complete());
  EXPECT_EQ(back.layers, kLayers);
  EXPECT_EQ(back.done.size(), 2u);
  EXPECT_EQ(digest_of(back.done), digest_of(made.done));
}

TEST_F(CalibrationFile, OtherModelsAndFilesAreRefused) {
  save_calibration(path(), make("vecinfer:2,sub=4", "vecinfer:2,sub=4"));
  const Identity other{{"family", "llama"}, {"weights", "ffff"}};
  expect_refused(path(), &other, "belongs to another model: its weights is \"0123abcd\", this model's is \"ffff\"");
  KvCache(KvSpec::parse("full"), 1, {1, 1, 64, 64}, Dtype::f16, ops::Policy::automatic).save(path("kv"), kModel);
  expect_refused(path("kv"), &kModel, "is not a calibration of Tersor");
  write("hello");
  expect_refused(path(), &kModel, "is not a safetensors file");
  EXPECT_THROW(load_calibration(path("missing"), nullptr), Error);
  EXPECT_THROW(save_calibration(path("no/such/folder/file"), make("turboquant:2.5", "full")), Error);
}

TEST_F(CalibrationFile, WrongHeadersAreRefused) {
  save_calibration(path(), make("vecinfer:2,sub=4", "turboquant:2.5"));
  const std::string good = read_file(path());
  const std::vector<std::tuple<std::string, std::string, std::string>> changes = {
      {R"("version":"1")", R"("version":"9")", "version 9"},
      {R"("format":"tersor-calibration")", R"("format":"tersor-kv")", "is not a calibration"},
      {R"("layers":"3")", R"("layers":"0")", "layers"},
      {R"("layers":"3")", R"("layers":"2")", "layers_done"},
      {R"("layers_done":"3")", R"("layers_done":"99")", "layers_done"},
      {R"("layers_done":"3")", R"("layers_done":"2")", "damaged"},
      {R"("kv_heads":"2")", R"("kv_heads":"3")", "expected"},
      {R"("kv_heads":"2")", R"("kv_heads":"65536")", "expected"},
      {R"("key_dim":"32")", R"("key_dim":"64")", "expected"},
      {R"("key_dim":"32")", R"("key_dim":"-1")", "key_dim"},
      {R"("keys":"vecinfer:2,sub=4")", R"("keys":"vecinfer:1,sub=4")", "expected"},
      {R"("keys":"vecinfer:2,sub=4")", R"("keys":"vecinfer:9,sub=4")", "vecinfer:9"},
      {R"("keys":"vecinfer:2,sub=4")", R"("keys":"turboquant:2.5")", "channels"},
      {R"("values":"turboquant:2.5")", R"("values":"qjl:64")", "qjl"},
      {R"("values":"turboquant:2.5")", R"("values":"turboquant:3.5")", "digest"},
      {"layers.1.keys.centroids", "layers.1.keys.centroidz", "layers.1.keys.centroids"},
      {"layers.2.values.channels", "layers.2.values.chanels", "layers.2.values.channels"}};
  for (const auto& [from, to, words] : changes) {
    SCOPED_TRACE(from + " -> " + to);
    write(with(good, from, to));
    expect_refused(path(), &kModel, words);
  }
}

// Numbers that would do harm are refused even where the digest was made for them.
TEST_F(CalibrationFile, WrongNumbersAreRefused) {
  const auto refuse = [&](auto&& change, const std::string& words) {
    SavedCalibration c = make("vecinfer:2,sub=4,centre=calibrated", "turboquant:2.5");
    change(c);
    save_calibration(path(), c);
    expect_refused(path(), &kModel, words);
  };
  refuse([](SavedCalibration& c) { c.done[1].keys[0].centroids[5] = NAN; }, "layers.1.keys.*: a number is not finite");
  refuse([](SavedCalibration& c) { c.done[0].keys[1].mean[5] = INFINITY; }, "not finite");
  refuse([](SavedCalibration& c) { c.done[2].keys[1].smoothing[0] = 0; }, "not above 0");
  refuse([](SavedCalibration& c) { c.done[2].values[0].channels[3] = c.done[2].values[0].channels[4]; }, "every channel once");
  refuse([](SavedCalibration& c) { c.done[2].values[0].channels[3] = kDim; }, "every channel once");
}

TEST_F(CalibrationFile, TruncationAndFlippedBytesAreRefused) {
  save_calibration(path(), make("vecinfer:2,sub=4", "turboquant:2.5"));
  const std::string good = read_file(path());
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (size_t size = 0; size < good.size(); size += size < header + 16 ? 7 : 499) {
    write(good.substr(0, size));
    EXPECT_THROW(load_calibration(path(), &kModel), Error) << size << " of " << good.size();
  }
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    const size_t at = random() % (i % 2 ? good.size() : header + 8);
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write(bad);
    try {
      load_calibration(path(), &kModel);  // blanks of the header
    } catch (const Error& error) { EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos); }
  }
}

TEST(FullVectors, AreReadBackAsTheyWereAppended) {
  const LayerShape shape{1, kHeads, kDim, kDim};
  KvCache cache(KvSpec::parse("full"), 1, shape, Dtype::f32, ops::Policy::automatic);
  const int tokens = 150;
  const std::vector<float> k = normal_vectors(tokens * kHeads, 1), v = normal_vectors(tokens * kHeads, 2);
  const mx::Shape size{1, tokens, kHeads * kDim};
  cache.layer(0).append(mx::array(k.data(), size), mx::array(v.data(), size));
  cache.layer(0).append(mx::array(v.data(), size), mx::array(k.data(), size));
  cache.eval();
  const std::vector<int64_t> positions{0, 7, 149, 150, 299};
  for (const Role role : {Role::keys, Role::values})
    for (int head = 0; head < kHeads; ++head) {
      std::vector<float> got(positions.size() * kDim);
      read_vectors(cache.layer(0), role, head, positions, got);
      for (size_t i = 0; i < positions.size(); ++i) {
        const auto& from = (positions[i] < tokens) == (role == Role::keys) ? k : v;
        const size_t at = (static_cast<size_t>(positions[i] % tokens) * kHeads + static_cast<size_t>(head)) * kDim;
        for (int d = 0; d < kDim; ++d) ASSERT_EQ(got[i * kDim + static_cast<size_t>(d)], from[at + static_cast<size_t>(d)]);
      }
    }
}

}  // namespace
}  // namespace tersor::cache
