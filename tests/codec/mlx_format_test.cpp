// Bytes of mx.quantize: ours are the same for affine, mxfp4 and mxfp8, in both directions. tests/data/make_mlx_quantised.py made the data.
#include "codec/mlx_format.h"

#include <gtest/gtest.h>

#include "codec/microscaling.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

using Json = nlohmann::json;

const Json& pinned() {
  static const Json json = Json::parse(std::ifstream(TERSOR_SOURCE_DIR "/tests/data/mlx_quantised.json"));
  return json;
}

Vector floats(const Json& bits, Dtype dtype) {
  Vector x;
  for (const uint32_t b : bits)
    x.push_back(dtype == Dtype::f32   ? std::bit_cast<float>(b)
                : dtype == Dtype::f16 ? half_to_float(static_cast<uint16_t>(b))
                                      : bfloat_to_float(static_cast<uint16_t>(b)));
  return x;
}

std::vector<uint32_t> words(const Json& json) { return json.get<std::vector<uint32_t>>(); }

// Calls body(dtype, x, case) for every pinned case of a kind.
template <class Body>
void for_every(const char* kind, const Body& body) {
  for (const Json& input : pinned()["inputs"]) {
    const Dtype dtype = parse_dtype(input["dtype"].get<std::string>());
    for (const Json& one : input[kind]) body(dtype, floats(input["x"], dtype), one);
  }
}

TEST(MlxFormat, AffineIsByteForByteMlx) {
  int cases = 0;
  for_every("affine", [&](Dtype dtype, const Vector& x, const Json& one) {
    const int bits = one["bits"], group = one["group"];
    SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(bits) + " bits, group " + std::to_string(group));
    const MlxAffine ours = mlx_affine(x, bits, group, dtype);
    EXPECT_EQ(mlx_pack(ours.codes, bits), words(one["words"]));
    EXPECT_EQ(ours.scales, floats(one["scales"], dtype));
    EXPECT_EQ(ours.biases, floats(one["biases"], dtype));
    ++cases;
  });
  EXPECT_EQ(cases, 3 * 8);
}

TEST(MlxFormat, AffineOfMlxIsReadBack) {
  for_every("affine", [&](Dtype dtype, const Vector&, const Json& one) {
    const MlxAffine theirs{mlx_unpack(words(one["words"]), one["bits"]), floats(one["scales"], dtype), floats(one["biases"], dtype)};
    EXPECT_EQ(mlx_affine_decode(theirs, one["group"], dtype), floats(one["decoded"], dtype)) << one["bits"] << " " << one["group"];
  });
}

// The cache rounds scale and bias to 10 bits before it chooses codes; MLX chooses codes first. A code may then lie one step aside, where
// the number was as near to the border of the two as those roundings are large. Groups that do not span zero are left out: MLX bends their
// scale too, so that zero would be a code if there were more; the cache does not, which is nearer.
TEST(MlxFormat, TheCacheDiffersFromMlxByOneStepAtBorders) {
  for_every("affine", [&](Dtype dtype, const Vector& x, const Json& one) {
    const int bits = one["bits"], group = one["group"], columns = pinned()["columns"];
    const auto codec = make("affine:" + std::to_string(bits) + ",group=" + std::to_string(group), Role::values, columns);
    const MlxAffine theirs = mlx_affine(x, bits, group, Dtype::f32);
    std::vector<Code> ours(columns);
    Vector scalars(codec->scalars());
    for (size_t at = 0; at < x.size(); at += columns) {
      codec->encode(std::span(x).subspan(at, columns), ours, scalars);
      for (int i = 0; i < columns; ++i) {
        const size_t g = (at + i) / group;
        const double zero_code = std::abs(theirs.biases[g] / theirs.scales[g]);
        if (zero_code > (1 << bits) - 1 || ours[i] == theirs.codes[at + i]) continue;
        ASSERT_EQ(std::abs(ours[i] - theirs.codes[at + i]), 1) << bits << " " << group << " at " << at + i;
        const double place = (static_cast<double>(x[at + i]) - theirs.biases[g]) / theirs.scales[g];
        const double rounding = (zero_code + (1 << bits)) * 0x1p-10;
        EXPECT_NEAR(place, (ours[i] + theirs.codes[at + i]) / 2.0, rounding) << name_of(dtype) << " " << bits << " at " << at + i;
      }
    }
  });
}

TEST(MlxFormat, MicroscaledCodecsAreByteForByteMlx) {
  int cases = 0;
  for_every("mx", [&](Dtype dtype, const Vector& x, const Json& one) {
    const int columns = pinned()["columns"];
    const auto codec = make(one["codec"], Role::keys, columns);
    std::vector<Code> all, codes(columns);
    std::vector<int> exponents;
    Vector scalars(codec->scalars()), decoded, y(columns);
    for (size_t at = 0; at < x.size(); at += columns) {
      codec->encode(std::span(x).subspan(at, columns), codes, scalars);
      codec->decode(codes, scalars, y);
      all.insert(all.end(), codes.begin(), codes.end());
      decoded.insert(decoded.end(), y.begin(), y.end());
      for (const float scale : scalars) exponents.push_back(encode_exponent(scale));
    }
    SCOPED_TRACE(std::string(name_of(dtype)) + " " + one["codec"].get<std::string>());
    EXPECT_EQ(exponents, one["scales"].get<std::vector<int>>());
    EXPECT_EQ(mlx_pack(all, codec->spec().bits), words(one["words"]));
    EXPECT_EQ(mlx_unpack(words(one["words"]), codec->spec().bits), all);
    EXPECT_EQ(decoded, floats(one["decoded"], dtype));
    ++cases;
  });
  EXPECT_EQ(cases, 3 * 2);
}

TEST(MlxFormat, PackingIsLittleEndianBits) {
  EXPECT_EQ(mlx_pack(std::vector<Code>(32, 1), 1), std::vector<uint32_t>{0xffffffffu});
  const std::vector<Code> codes = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0};
  const auto packed = mlx_pack(codes, 3);
  EXPECT_EQ(packed.size(), 3u);
  EXPECT_EQ(packed[0] & 0x1ff, 1u | 2u << 3 | 3u << 6);
  EXPECT_EQ(mlx_unpack(packed, 3), codes);
}

}  // namespace
}  // namespace tersor::codec
