// What holds for every codec, whatever its family: degenerate input, the two maps, sizes, storage, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "codec/books.h"
#include "codec/layout.h"
#include "codec/scalar.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

// Calls body(codec) for every codec of every role that it takes.
template <class Body>
void for_every_codec(int dim, const Body& body) {
  std::vector<std::string> names = compressed_codecs();
  for (const std::string& name : other_codecs()) names.push_back(name);
  for (const std::string& name : names)
    for (const Role role : {Role::keys, Role::values})
      if (takes(name, role, dim)) {
        SCOPED_TRACE(name + (role == Role::keys ? " keys" : " values"));
        body(*make(name, role, dim));
      }
}

struct Encoded {
  std::vector<Code> codes;
  Vector scalars;
  bool operator==(const Encoded&) const = default;
};

Encoded encoded(const Codec& codec, const Vector& x) {
  Encoded e{std::vector<Code>(static_cast<size_t>(codec.block_tokens()) * codec.codes()), Vector(codec.scalars())};
  codec.encode(x, e.codes, e.scalars);
  return e;
}

Vector decoded(const Codec& codec, const Encoded& e) {
  Vector stored(static_cast<size_t>(codec.block_tokens()) * codec.stored_dim());
  codec.decode(e.codes, e.scalars, stored);
  return stored;
}

Vector block(Random& random, const Codec& codec, float size = 1) { return gaussian(random, codec.dim() * codec.block_tokens(), size); }

TEST(EveryCodec, HostileVectorsDecodeToFiniteNumbers) {
  for_every_codec(64, [](const Codec& codec) {
    Random random(1);
    for (const float value : {0.0f, -0.0f, kTiny, -kTiny, 1e-30f, 65504.0f, 1e30f, -1e30f, kInfinity, -kInfinity, kNan}) {
      Vector spike = block(random, codec), constant(spike.size(), value), alone(spike.size(), 0.0f);
      spike[7] = value, alone[3] = value;
      for (const Vector& x : {spike, constant, alone}) {
        const Encoded e = encoded(codec, x);
        for (const float s : e.scalars) EXPECT_TRUE(std::isfinite(s)) << value;
        for (const float v : decoded(codec, e)) EXPECT_TRUE(std::isfinite(v)) << value;
        for (const float v : roundtrip(codec, x)) EXPECT_TRUE(std::isfinite(v)) << value;
      }
    }
  });
}

TEST(EveryCodec, NonFiniteNumbersAreCleaned) {
  for_every_codec(64, [](const Codec& codec) {
    Random random(2);
    Vector x = block(random, codec), clean = x;
    x[5] = kNan, x[20] = kInfinity, x[40] = -kInfinity, x[41] = 1e30f;
    clean[5] = 0, clean[20] = kInputMax, clean[40] = -kInputMax, clean[41] = kInputMax;
    EXPECT_EQ(encoded(codec, x), encoded(codec, clean));
  });
}

// A codebook of the data may have no zero; every other codec does.
TEST(EveryCodec, ZeroComesBackAsZero) {
  for_every_codec(64, [](const Codec& codec) {
    if (codec.family() == Family::vecinfer) return;
    for (const float v : roundtrip(codec, Vector(static_cast<size_t>(codec.dim()) * codec.block_tokens(), 0.0f))) EXPECT_EQ(v, 0.0f);
  });
}

TEST(EveryCodec, CodesFitTheirPieces) {
  for_every_codec(64, [](const Codec& codec) {
    Random random(3);
    int next = 0;
    for (const Piece& piece : codec.form().pieces) {
      EXPECT_EQ(piece.first, next);
      next += piece.count;
    }
    EXPECT_EQ(next, codec.codes());
    const Encoded e = encoded(codec, block(random, codec, 3));
    for (size_t i = 0; i < e.codes.size(); ++i)
      for (const Piece& piece : codec.form().pieces)
        if (const int at = static_cast<int>(i) % codec.codes(); at >= piece.first && at < piece.first + piece.count) {
          EXPECT_LT(e.codes[i], 1 << piece.bits);
        }
  });
}

// Attention with maps is attention: <M q, stored> = <q, N stored> for every codec here, since N is M's transpose.
TEST(EveryCodec, TheOutputMapIsTheQueryMapTransposed) {
  for (const int dim : {64, 96})
    for_every_codec(dim, [dim](const Codec& codec) {
      const auto m = query_matrix(codec), n = output_matrix(codec);
      ASSERT_EQ(m.size(), static_cast<size_t>(dim) * codec.stored_dim());
      for (int r = 0; r < codec.stored_dim(); ++r)
        for (int c = 0; c < dim; ++c) ASSERT_NEAR(m[r * dim + c], n[c * codec.stored_dim() + r], 1e-5) << r << " " << c;
    });
}

// A map that preserves inner products exactly loses nothing but what the codes lose: N M = identity, except for sketches.
TEST(EveryCodec, MapsWithoutSketchesUndoEachOther) {
  Random random(4);
  for_every_codec(96, [&](const Codec& codec) {
    if (codec.family() == Family::qjl || codec.family() == Family::turboquant_prod || codec.family() == Family::vecinfer) return;
    const Vector x = gaussian(random, 96);
    std::vector<double> q(x.begin(), x.end()), stored(codec.stored_dim()), back(96);
    codec.map_query(q, stored);
    codec.map_output(stored, back);
    for (int i = 0; i < 96; ++i) EXPECT_NEAR(back[i], q[i], 1e-12);
  });
}

TEST(EveryCodec, LayoutsGiveBackWhatWasPut) {
  for (const int dim : {64, 80})
    for_every_codec(dim, [dim](const Codec& codec) {
      if (!takes(codec.spec().str(), codec.role(), dim)) return;
      const auto shared = make(codec.spec().str(), codec.role(), dim);
      const Layout layout(shared);
      Random random(5);
      constexpr int kTokens = 192;
      std::vector<uint8_t> blocks(layout.bytes(kTokens), 0x5a);
      std::vector<Encoded> all;
      for (int t = 0; t < kTokens; t += codec.block_tokens()) {
        all.push_back(encoded(codec, block(random, codec)));
        layout.put(blocks.data(), t, all.back().codes, all.back().scalars);
      }
      for (int t = 0; t < kTokens; t += codec.block_tokens()) {
        Encoded found = all[0];
        layout.get(blocks.data(), t, found.codes, found.scalars);
        ASSERT_EQ(found, all[t / codec.block_tokens()]) << "token " << t;
        Vector stored(static_cast<size_t>(codec.block_tokens()) * codec.stored_dim());
        layout.decode(blocks.data(), t, stored);
        ASSERT_EQ(stored, decoded(codec, found));
      }
    });
}

// Where no piece needs padding a block takes what bits_per_element says.
TEST(EveryCodec, BlocksAreOfTheStatedSize) {
  for_every_codec(128, [](const Codec& codec) {
    const auto shared = make(codec.spec().str(), codec.role(), 128);
    const Layout layout(shared);
    for (const Piece& piece : codec.form().pieces)
      if (piece.count % kLanes != 0) return;
    EXPECT_DOUBLE_EQ(static_cast<double>(layout.block_bytes) * 8, codec.bits_per_element() * 128 * kTileTokens);
  });
}

// Parts cover all codes, their sections are padded and apart unless they add up, and decoding by parts is decoding.
TEST(EveryCodec, PartsAddUpToTheStoredVector) {
  for (const int dim : {64, 80})
    for_every_codec(dim, [dim](const Codec& codec) {
      if (!takes(codec.spec().str(), codec.role(), dim)) return;
      const Layout layout(make(codec.spec().str(), codec.role(), dim));
      int next_code = 0;
      for (const Layout& part : layout.parts()) {
        EXPECT_EQ(part.first_code, next_code);
        next_code += part.codes;
        EXPECT_EQ(part.stored_begin % kLanes, 0);
        EXPECT_LE(part.stored_begin + part.padded_dim, layout.padded_dim);
        if (part.has_norms()) {
          ASSERT_NE(part.table, nullptr);
          EXPECT_EQ(part.table->levels.size(), size_t{1} << part.bits);
        }
      }
      EXPECT_EQ(next_code, codec.codes());
      if (!layout.parts()[0].has_norms()) return;
      Random random(9);
      const Encoded e = encoded(codec, block(random, codec));
      const Vector whole = decoded(codec, e);
      Vector sum(whole.size(), 0.0f);
      for (const Layout& part : layout.read_parts()) {
        const int begin = codec.form().pieces[&part - layout.parts().data()].stored_begin;
        for (int i = 0; i < part.dim; ++i)
          sum[begin + i] += part.table->levels[e.codes[part.first_code + i]] * e.scalars[part.first_scalar];
      }
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(sum[i], whole[i], 1e-6 * (1 + std::abs(whole[i])));
    });
}

TEST(EveryCodec, OnlyPlainOnesHaveFragmentTiles) {
  std::vector<std::string> others = other_codecs();
  for (const char* name : {"turboquant:4,scalar=lsq", "turboquant:6,scalar=norm"}) others.push_back(name);
  for (const std::string& name : others) EXPECT_FALSE(Layout::fits_fragments(*make(name, Role::keys, 64))) << name;
}

void expect_refused(const std::string& name, Role role, int dim, const std::string& reason) {
  try {
    Codec::make(Spec::parse(name), role, dim);
    ADD_FAILURE() << name << " was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr(reason), testing::Not(testing::HasSubstr("\n"))));
  }
}

TEST(EveryCodec, RefusalsSayWhy) {
  expect_refused("qjl:128", Role::values, 64, "store values in 2 bits (affine:2,group=32)");
  expect_refused("vecinfer:1,sub=8", Role::keys, 100, "sub=8 must divide it");
  expect_refused("vecinfer:1,sub=8", Role::keys, 64, "needs a calibration");
  expect_refused("turboquant:2.5", Role::values, 64, "needs a calibration");
  expect_refused("turboquant:2.25", Role::keys, 8, "takes 16 and more");
  expect_refused("qjl:64,outliers=8", Role::keys, 64, "needs a calibration");
  expect_refused("turboquant-rvq:2+2", Role::keys, 3, "takes 4 and more");
  expect_refused("turboquant:4,centre=32", Role::values, 64, "centre= is for keys");
  expect_refused("mxfp4", Role::keys, 2000, "outside 1 to 1024");
  Calibration wrong;
  wrong.channels = {0, 0, 1};
  EXPECT_THROW(Codec::make(Spec::parse("turboquant:2.5"), Role::keys, 64, Dtype::f16, &wrong), Error);
  wrong.centroids = Vector(12);
  EXPECT_THROW(Codec::make(Spec::parse("vecinfer:2,sub=4"), Role::values, 64, Dtype::f16, &wrong), Error);
}

TEST(Rvq, TheFirstStageCanBeReadAlone) {
  Random random(6);
  for (const char* name : {"turboquant-rvq:2+2", "turboquant-rvq:4+4", "turboquant-rvq:3+1"}) {
    const auto both = make(name, Role::values, 128), first = make(std::string(name) + ",stages=1", Role::values, 128);
    const int bits = both->spec().bits;
    double error = 0;
    for (int i = 0; i < 400; ++i) {
      const Vector x = gaussian(random, 128);
      EXPECT_EQ(encoded(*both, x).codes, encoded(*first, x).codes);
      error += relative_error(*first, x) / 400;
    }
    EXPECT_NEAR(error, lloyd_max_book(128, bits).distortion, 0.06 * lloyd_max_book(128, bits).distortion) << name;
  }
}

TEST(Split, UnevenChannelsGainFromTheirBits) {
  Random random(7);
  const auto row = [&] {
    Vector x = gaussian(random, 128);
    for (int i = 1; i < 128; i += 2) x[i] *= 6;
    return x;
  };
  Vector rows;
  for (int i = 0; i < 50; ++i) {
    const Vector x = row();
    rows.insert(rows.end(), x.begin(), x.end());
  }
  const Spec spec = Spec::parse("turboquant:2.5");
  const Calibration calibration = calibrate(spec, Role::values, 128, rows).calibration;
  for (int i = 0; i < 64; ++i) EXPECT_EQ(calibration.channels[i] % 2, 1) << "the upper set are the loud channels";
  const auto split = Codec::make(spec, Role::values, 128, Dtype::f16, &calibration), whole = make("turboquant:3", Role::values, 128);
  double split_error = 0, whole_error = 0;
  for (int i = 0; i < 300; ++i) {
    const Vector x = row();
    split_error += relative_error(*split, x), whole_error += relative_error(*whole, x);
  }
  EXPECT_LT(split_error, 1.2 * whole_error) << "as good as three bits, in two and a half";
}

TEST(Qjl, SignOfZeroIsPlus) {
  const auto codec = make("qjl:128", Role::keys, 64);
  for (const Code code : encoded(*codec, Vector(64, 0.0f)).codes) EXPECT_EQ(code, 1);
}

// A loud channel drowns the others in one sketch; with a sketch of its own it does not.
TEST(Qjl, OutliersHaveASketchOfTheirOwn) {
  Random random(8);
  const auto row = [&] {
    Vector x = gaussian(random, 128);
    for (int i = 0; i < 4; ++i) x[9 * i + 2] *= 40;
    return x;
  };
  const Spec spec = Spec::parse("qjl:256,outliers=4");
  Vector rows;
  for (int i = 0; i < 50; ++i) {
    const Vector x = row();
    rows.insert(rows.end(), x.begin(), x.end());
  }
  const Calibration calibration = calibrate(spec, Role::keys, 128, rows).calibration;
  const auto apart = Codec::make(spec, Role::keys, 128, Dtype::f16, &calibration), one = make("qjl:256", Role::keys, 128);
  double apart_error = 0, one_error = 0;
  for (int i = 0; i < 300; ++i) {
    const Vector x = row(), q = gaussian(random, 128);
    Vector quiet = q;
    for (int k = 0; k < 4; ++k) quiet[9 * k + 2] = 0;
    apart_error += std::pow(dot(quiet, roundtrip(*apart, x)) - dot(quiet, x), 2);
    one_error += std::pow(dot(quiet, roundtrip(*one, x)) - dot(quiet, x), 2);
  }
  EXPECT_LT(apart_error, 0.1 * one_error);
}

// KIVI's rule divides by a range of zero where a channel is constant; ours returns the constant.
TEST(ChannelAffine, ConstantChannelsComeBack) {
  for (const char* rule : {"", ",rule=mlx"}) {
    const auto codec = make(std::string("affine:2,group=32,axis=channel") + rule, Role::keys, 64);
    Random random(9);
    Vector x = block(random, *codec);
    for (int t = 0; t < 32; ++t) x[t * 64 + 10] = 2.5f, x[t * 64 + 11] = 0;
    const Vector y = roundtrip(*codec, x);
    for (int t = 0; t < 32; ++t) {
      EXPECT_EQ(y[t * 64 + 10], 2.5f);
      EXPECT_EQ(y[t * 64 + 11], 0.0f);
    }
  }
}

TEST(ChannelAffine, BlocksMustBeWhole) {
  const auto codec = make("affine:2,group=32,axis=channel", Role::keys, 64);
  Vector one(64), other(64);
  EXPECT_THROW(codec->roundtrip(one, other), Error);
}

// A bias per channel costs per-token groups their bits and per-channel groups nothing.
TEST(ChannelAffine, ChannelBiasesCostNothing) {
  Random random(10);
  const auto channel = make("affine:4,group=32,axis=channel", Role::keys, 64), token = make("affine:4,group=32", Role::keys, 64);
  Vector x = block(random, *channel), bias = gaussian(random, 64, 100);
  for (size_t i = 0; i < x.size(); ++i) x[i] += bias[i % 64];
  const Vector y = roundtrip(*channel, x);
  double by_channel = 0, by_token = 0;
  for (int t = 0; t < 32; ++t) {
    const Vector one(x.begin() + t * 64, x.begin() + (t + 1) * 64), z = roundtrip(*token, one);
    for (int d = 0; d < 64; ++d) by_channel += std::pow(y[t * 64 + d] - one[d], 2), by_token += std::pow(z[d] - one[d], 2);
  }
  EXPECT_LT(by_channel, 0.01 * by_token);
}

TEST(Catalogue, RowsCanBeMadeAndTheirErrorIsTrue) {
  std::vector<bool> seen(static_cast<size_t>(Family::mxfp8) + 1);
  for (const CatalogueRow& row : catalogue()) {
    SCOPED_TRACE(row.spec.str());
    seen[static_cast<size_t>(row.spec.family)] = true;
    EXPECT_EQ(row.needs.empty(), !needs_calibration(row.spec) && row.spec.axis == Axis::token);
    EXPECT_EQ(row.values, takes(row.spec.str(), Role::values, 128));
    EXPECT_TRUE(row.keys);
    if (row.spec.family == Family::vecinfer) continue;  // depends on the training; reference_measured_test.cpp
    const auto codec = make(row.spec.str(), row.values ? Role::values : Role::keys, 128);
    Random random(11);
    double error = 0;
    const int blocks = std::max(4, 800 / codec->block_tokens());
    for (int i = 0; i < blocks; ++i) error += relative_error(*codec, block(random, *codec)) / blocks;
    // The least-squares scalar gains most where a book is not the best one for its bits.
    EXPECT_NEAR(error, row.distortion, (row.spec.family == Family::turboquant_rvq ? 0.1 : 0.05) * row.distortion);
  }
  for (size_t family = 0; family < seen.size(); ++family) EXPECT_TRUE(seen[family]) << family;
}

}  // namespace
}  // namespace tersor::codec
