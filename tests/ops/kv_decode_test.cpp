// Slabs back to vectors, against the plain codecs: keys give the same scores, values the same numbers.
#include <gtest/gtest.h>

#include <mlx/ops.h>

#include <cmath>
#include <numeric>

#include "ops/kv.h"
#include "ops/kv_cases.h"

namespace tersor::ops {
namespace {

constexpr int kTokens = 70, kDim = 64, kHeads = 2;

struct Case {
  const char* name;
  codec::Role role;
};

class KvDecode : public testing::TestWithParam<Case> {
 protected:
  std::shared_ptr<const codec::Codec> codec_ = codec::Codec::make(codec::Spec::parse(GetParam().name), GetParam().role, kDim);

  // The decoded vectors of a slab that was filled by the fast kernel.
  mx::array decoded(const test::Rows& x) const {
    const bool keys = GetParam().role == codec::Role::keys;
    const auto full = codec::Codec::make({}, keys ? codec::Role::values : codec::Role::keys, kDim);
    KvFormat format(std::make_shared<const KvBasis>(KvBasis::Codecs{keys ? codec_ : full}, KvBasis::Codecs{keys ? full : codec_}));
    format.heads = kHeads;
    KvSlab slab = KvSlab::make(std::make_shared<const KvFormat>(format), kTokens, 0);
    const mx::array rows = test::arranged(x, mx::float32, test::Arrangement::heads_major);
    const KvWrite write{&slab, 0, kTokens, 0};
    Choice fast;
    fast.fast = true;
    kv_append(std::span(&write, 1), rows, rows, {}, fast);
    slab.count = kTokens;
    mx::array result = mx::contiguous(kv_decode(slab, GetParam().role, 0, kTokens));
    result.eval();
    return result;
  }

  // What a vector is worth to attention: the score of a query (keys), or the vector that comes out (values).
  std::vector<double> worth(const float* x, const std::vector<double>& q) const {
    std::vector<codec::Code> codes(codec_->codes());
    std::vector<float> scalars(codec_->scalars()), stored(codec_->stored_dim());
    if (codec_->family() == codec::Family::full) {
      std::copy(x, x + kDim, stored.begin());
    } else {
      codec_->encode({x, kDim}, codes, scalars);
      codec_->decode(codes, scalars, stored);
    }
    const std::vector<double> wide(stored.begin(), stored.end());
    if (GetParam().role == codec::Role::values) {
      std::vector<double> out(kDim);
      codec_->map_output(wide, out);
      return out;
    }
    std::vector<double> mapped(codec_->stored_dim());
    codec_->map_query(q, mapped);
    return {std::inner_product(mapped.begin(), mapped.end(), wide.begin(), 0.0)};
  }
};

TEST_P(KvDecode, IsWorthWhatThePlainCodecSays) {
  test::Random random(5);
  const test::Rows x = test::normal_rows(random, 1, kHeads, kTokens, kDim);
  const mx::array got = decoded(x);
  std::normal_distribution<double> normal;
  double error = 0, size = 0;
  for (int h = 0; h < kHeads; ++h)
    for (int t = 0; t < kTokens; ++t) {
      std::vector<double> q(kDim);
      for (double& number : q) number = normal(random);
      const auto expected = worth(x.row(0, h, t), q);
      const float* row = got.data<float>() + (static_cast<size_t>(h) * kTokens + t) * kDim;
      const std::vector<double> found = GetParam().role == codec::Role::values
                                            ? std::vector<double>(row, row + kDim)
                                            : std::vector<double>{std::inner_product(q.begin(), q.end(), row, 0.0)};
      for (size_t i = 0; i < found.size(); ++i) error += std::pow(found[i] - expected[i], 2), size += std::pow(expected[i], 2);
    }
  EXPECT_LT(std::sqrt(error / size), codec_->family() == codec::Family::full ? 1e-3 : 5e-3);  // a code on a border may differ
  EXPECT_GT(size, 0);
}

std::vector<Case> cases() {
  std::vector<Case> all{{"qjl:128", codec::Role::keys}};
  for (const char* name : {"full", "affine:4", "turboquant:3", "turboquant:6", "turboquant-prod:3", "turboquant-rvq:2+2", "mxfp4", "mxfp8"})
    for (const auto role : {codec::Role::keys, codec::Role::values}) all.push_back({name, role});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, KvDecode, testing::ValuesIn(cases()));

}  // namespace
}  // namespace tersor::ops
