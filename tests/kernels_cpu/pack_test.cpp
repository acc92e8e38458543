// Packing and scalar quantisation of flat arrays against the plain references, on every SIMD target of this machine.
#include "kernels/cpu/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "codec/levels.h"
#include "codec/mlx_format.h"
#include "kernels/cpu/simd_target.h"

namespace tersor::kernels {
namespace {

class Pack : public testing::Test {
 protected:
  ~Pack() override { force_simd_target(""); }
  std::mt19937 random_{7};
};

// The reference's words of codes, to which zeros are added until they fill words.
std::vector<uint8_t> reference(std::vector<codec::Code> codes, int bits) {
  const size_t bytes = packed_bytes(codes.size(), bits);
  for (codec::Code& code : codes) code = static_cast<codec::Code>(code & ((1 << bits) - 1));
  while (codes.size() % 32) codes.push_back(0);
  const std::vector<uint32_t> words = codec::mlx_pack(codes, bits);
  std::vector<uint8_t> all(words.size() * 4);
  if (!words.empty()) std::memcpy(all.data(), words.data(), all.size());
  all.resize(bytes);
  return all;
}

TEST_F(Pack, EveryWidthAndLengthAsTheReferenceAndBack) {
  constexpr uint8_t kFence = 0xa5;
  for (const auto& name : available_simd_targets()) {
    force_simd_target(name);
    for (int bits = 1; bits <= 8; ++bits)
      for (size_t n = 0; n < 300; n += n < 70 ? 1 : 23) {
        SCOPED_TRACE(name + ", " + std::to_string(bits) + " bits, " + std::to_string(n) + " codes");
        std::vector<uint8_t> codes(n);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(random_());
        std::vector<uint8_t> packed(packed_bytes(n, bits) + 1, kFence);
        pack_codes(codes.data(), n, bits, packed.data());
        ASSERT_EQ(packed.back(), kFence);
        packed.pop_back();
        ASSERT_EQ(packed, reference({codes.begin(), codes.end()}, bits));
        std::vector<uint8_t> back(n + 1, kFence);
        unpack_codes(packed.data(), n, bits, back.data());
        ASSERT_EQ(back.back(), kFence);
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(back[i], codes[i] & ((1 << bits) - 1)) << i;
      }
  }
}

TEST_F(Pack, NearestLevelsAsTheReferenceAndBack) {
  for (const auto& name : available_simd_targets()) {
    force_simd_target(name);
    for (const int count : {2, 3, 4, 8, 11, 16, 17, 32, 50, 64, 128, 255, 256}) {
      std::normal_distribution<float> normal;
      std::vector<float> levels(static_cast<size_t>(count)), thresholds;
      for (float& level : levels) level = normal(random_);
      std::sort(levels.begin(), levels.end());
      for (size_t i = 0; i + 1 < levels.size(); ++i) thresholds.push_back((levels[i] + levels[i + 1]) / 2);
      for (const size_t n : {0, 1, 15, 16, 17, 1000}) {
        SCOPED_TRACE(name + ", " + std::to_string(count) + " levels, " + std::to_string(n) + " numbers");
        std::vector<float> x(n), back(n);
        for (float& v : x) v = 2 * normal(random_);
        if (n > 20) x[0] = NAN, x[1] = INFINITY, x[2] = -INFINITY, x[3] = thresholds[0], x[4] = thresholds.back();
        std::vector<uint8_t> codes(n);
        quantise_levels(x.data(), n, thresholds.data(), count, codes.data());
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(codes[i], codec::nearest(thresholds, x[i])) << x[i];
        dequantise_levels(codes.data(), n, levels.data(), count, back.data());
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(back[i], levels[codes[i]]);
      }
    }
  }
}

}  // namespace
}  // namespace tersor::kernels
