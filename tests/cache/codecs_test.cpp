// Caches of every codec: however tokens arrive, whatever is taken back, copied or centred, attention reads what it should.
#include <gtest/gtest.h>

#include "cache/cache_cases.h"
#include "codec/calibrate.h"

namespace tersor::cache {
namespace {

const std::vector<std::pair<const char*, const char*>> kPairs = {{"turboquant-prod:4", "turboquant-prod:3"},
                                                                 {"turboquant-rvq:3+2", "turboquant-rvq:4+4,book=joint"},
                                                                 {"qjl:256", "affine:2,group=32"},
                                                                 {"mxfp8", "mxfp4"},
                                                                 {"turboquant:4,centre=40", "turboquant:4"},
                                                                 {"affine:4,centre=40", "affine:4,rule=minmax"},
                                                                 {"affine:3,group=32,axis=channel", "mxfp8"},
                                                                 {"affine:4,axis=channel,centre=40", "turboquant-rvq:2+2"}};

class Codecs : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  Setting setting(Policy policy, int window, int sinks) const {
    Setting s;
    s.keys = GetParam().first, s.values = GetParam().second, s.policy = policy, s.window = window, s.sinks = sinks;
    s.shape.batch = 2;
    return s;
  }
};

double error(const Rows& a, const Rows& b) { return test::largest_error(a, b); }

TEST_P(Codecs, ChunksTrimsAndCopiesDoNotShow) {
  for (const Policy policy : kPolicies)
    for (const auto& [window, sinks] : {std::pair(0, 0), std::pair(24, 4)}) {
      SCOPED_TRACE(std::string(name_of(policy)) + " window " + std::to_string(window));
      const Conversation talk(setting(policy, window, sinks), 130, 7);
      LayerCache whole = talk.setting.make(), cut = talk.setting.make();
      const Rows want = talk.run(whole, 0, 130, 65);
      // The first chunk sets the centre, so that it is the same; then steps, some of them taken back.
      talk.run(cut, 0, 65, 65);
      talk.run(cut, 65, 72, 1);
      EXPECT_EQ(cut.trim(5), 5);
      LayerCache copy = cut.copy();
      talk.run(cut, 67, 130, 9);
      EXPECT_LE(error(talk.run(copy, 67, 130, 1), part(want, 67, 63)), 2e-5);
      EXPECT_LE(error(talk.attend(cut, 120, 10), part(want, 120, 10)), 2e-5);
      EXPECT_EQ(cut.tokens(), 130);
    }
}

TEST_P(Codecs, FastEqualsComposed) {
  const Conversation talk(setting(Policy::automatic, 16, 4), 150, 9);
  LayerCache fast = talk.setting.make();
  Setting forbidden = talk.setting;
  forbidden.policy = Policy::forbid;
  LayerCache composed = forbidden.make();
  const Rows a = talk.run(fast, 0, 150, 50), b = talk.run(composed, 0, 150, 50);
  double difference = 0, norm = 0;  // codes on a border may fall to either side
  for (size_t i = 0; i < a.data.size(); ++i) {
    difference += (a.data[i] - b.data[i]) * (a.data[i] - b.data[i]);
    norm += b.data[i] * b.data[i];
  }
  EXPECT_LE(std::sqrt(difference / norm), 0.01);
  EXPECT_TRUE(fast.choices()[1].fast);
  EXPECT_FALSE(composed.choices()[1].fast);
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, testing::ValuesIn(kPairs));

// Softmax does not see what all keys have in common; codes do. (Issue: keys with channel biases of +-300.)
TEST(CentredKeys, LargeBiasesCostNothing) {
  const auto cosine = [](const char* keys, float bias) {
    Setting s;
    s.keys = keys, s.values = "full", s.precision = ops::Precision::int16;
    Conversation talk(s, 300, 11), plain(s, 300, 11);
    for (int h = 0; h < talk.k.heads; ++h)
      for (int t = 0; t < 300; ++t)
        for (int d = 0; d < 64; ++d) talk.k.row(0, h, t)[d] += (d * 7 % 3 - 1) * bias;
    Setting full = s;
    full.keys = "full";
    LayerCache centred = s.make(), exact = full.make();
    const Rows a = talk.run(centred, 0, 300, 100), b = plain.run(exact, 0, 300, 100);
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.data.size(); ++i)
      ab += static_cast<double>(a.data[i]) * b.data[i], aa += static_cast<double>(a.data[i]) * a.data[i],
          bb += static_cast<double>(b.data[i]) * b.data[i];
    return ab / std::sqrt(aa * bb);
  };
  EXPECT_GE(cosine("turboquant:4,centre=100", 0), 0.98);
  EXPECT_GE(cosine("turboquant:4,centre=100", 300), 0.97);
  EXPECT_GE(cosine("affine:4,centre=100", 300), 0.97);
  EXPECT_LE(cosine("turboquant:4", 300), 0.9);  // what centring is for
}

// A calibrated codec: of each head its own, and an error where the calibration is another model's.
TEST(Calibrated, HeadsHaveTheirOwn) {
  Setting s;
  s.keys = "vecinfer:2,sub=4,centre=calibrated", s.values = "vecinfer:2,sub=4";
  const Conversation talk(s, 200, 13);
  LayerCalibration calibration;
  for (int h = 0; h < 2; ++h) {
    const auto of = [&](const std::string& name, codec::Role role, const Rows& rows) {
      return codec::calibrate(codec::Spec::parse(name), role, 64, {rows.row(0, h, 0), size_t{200} * 64}).calibration;
    };
    calibration.keys.push_back(of(s.keys, codec::Role::keys, talk.k));
    calibration.values.push_back(of(s.values, codec::Role::values, talk.v));
  }
  const auto make = [&](Policy policy, const LayerCalibration& c) {
    return LayerCache(codec::Spec::parse(s.keys), codec::Spec::parse(s.values), 0, 0, s.shape, s.full_dtype, policy, s.precision, c);
  };
  LayerCache fast = make(Policy::automatic, calibration), composed = make(Policy::forbid, calibration);
  EXPECT_LE(error(talk.run(fast, 0, 200, 67), talk.run(composed, 0, 200, 67)), 0.05);
  EXPECT_THROW(make(Policy::automatic, {}), Error);
  LayerCalibration one_head = calibration;
  one_head.keys.pop_back();
  EXPECT_THROW(make(Policy::automatic, one_head), Error);
}

}  // namespace
}  // namespace tersor::cache
