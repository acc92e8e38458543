// The fragment arrangement: every number has a place of its own, and the maps between places and numbers are inverse.
#include "codec/fragment.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "codec/fragment_wide.h"
#include "codec/layout.h"

namespace tersor::codec {
namespace {

constexpr int kDims[] = {16, 48, 64, 80, 96, 128, 256};
constexpr Packing kPackings[] = {Packing::sign1,  Packing::nibble2, Packing::nibble3, Packing::mirror4,
                                 Packing::plain2, Packing::plain4,  Packing::plain8};

TEST(Fragment, PlacesAreDistinctAndInverse) {
  for (const int dim : kDims)
    for (const bool keys : {true, false}) {
      std::set<std::tuple<int, int, int, int>> places;
      for (int t = 0; t < kFragmentTokens; ++t)
        for (int d = 0; d < dim; ++d) {
          const FragmentPlace at = keys ? key_fragment(dim, t, d) : value_fragment(t, d);
          ASSERT_TRUE(at.unit >= 0 && at.unit < dim / 16 && at.lane >= 0 && at.lane < 32 && at.reg >= 0 && at.reg < 8 && at.byte >= 0 &&
                      at.byte < 4);
          places.emplace(at.unit, at.lane, at.reg, at.byte);
          const TokenDim back = keys ? key_of_fragment(dim, at) : value_of_fragment(at);
          ASSERT_EQ(back.token, t);
          ASSERT_EQ(back.dim, d);
        }
      EXPECT_EQ(places.size(), static_cast<size_t>(dim) * kFragmentTokens);
    }
}

TEST(Fragment, BitsOfAUnitAreDistinct) {
  for (const Packing packing : kPackings) {
    std::set<std::pair<int, int>> bits;
    std::set<int> words;
    for (int reg = 0; reg < 8; ++reg)
      for (int byte = 0; byte < 4; ++byte)
        for (int bit = 0; bit < packing_bits(packing); ++bit) {
          const BitOfWord at = bit_of_word(packing, reg, byte, bit);
          ASSERT_LT(at.word, packing_words(packing));
          bits.emplace(at.word, at.shift);
        }
    EXPECT_EQ(bits.size(), static_cast<size_t>(32 * packing_words(packing)));
    for (int lane = 0; lane < 32; ++lane)
      for (int w = 0; w < packing_words(packing); ++w) words.insert(word_offset(packing_words(packing), lane, w));
    EXPECT_EQ(words.size(), static_cast<size_t>(32 * packing_words(packing)));
    EXPECT_EQ(*words.rbegin(), 128 * packing_words(packing) - 4);
    for (unsigned code = 0; code < 1u << packing_bits(packing); ++code)
      EXPECT_EQ(code_of_stored(packing, stored_code(packing, code)), code);
  }
}

TEST(Fragment, WideCodesHavePlacesOfTheirOwn) {
  for (const int more : {1, 2}) {
    const FragmentCode form{Packing::mirror4, more};
    std::set<std::pair<int, int>> bits;
    std::set<int> words;
    for (int reg = 0; reg < 8; ++reg)
      for (int byte = 0; byte < 4; ++byte)
        for (int bit = 0; bit < form.bits(); ++bit) {
          const BitOfWord at = form.place(reg, byte, bit);
          ASSERT_LT(at.word, form.words());
          bits.emplace(at.word, at.shift);
        }
    EXPECT_EQ(bits.size(), static_cast<size_t>(32 * form.words()));
    for (int lane = 0; lane < 32; ++lane)
      for (int w = 0; w < form.words(); ++w) words.insert(form.offset(lane, w));
    EXPECT_EQ(words.size(), static_cast<size_t>(32 * form.words()));
    EXPECT_EQ(*words.rbegin(), 128 * form.words() - 4);
    for (unsigned code = 0; code < 1u << form.bits(); ++code) EXPECT_EQ(form.code_of(form.stored(code)), code);
  }
}

TEST(Fragment, ScalarsAndFullNumbersHavePlacesOfTheirOwn) {
  std::set<int> scalars;
  for (int t = 0; t < kFragmentTokens; ++t) scalars.insert(scalar_index(t));
  EXPECT_EQ(scalars.size(), 64u);
  EXPECT_EQ(*scalars.rbegin(), 63);
  for (const int dim : kDims) {
    std::set<int> keys, values;
    for (int t = 0; t < kFragmentFullTokens; ++t)
      for (int d = 0; d < dim; ++d) keys.insert(full_key_index(t, d)), values.insert(full_value_index(t, d));
    EXPECT_EQ(keys.size(), static_cast<size_t>(16 * dim));
    EXPECT_EQ(values.size(), static_cast<size_t>(16 * dim));
    EXPECT_EQ(std::max(*keys.rbegin(), *values.rbegin()), 16 * dim - 1);
  }
}

TEST(Fragment, LayoutsGiveBackWhatWasPut) {
  std::mt19937 rng(1);
  for (const char* name :
       {"turboquant:1", "turboquant:2", "turboquant:3", "turboquant:4", "turboquant:5", "turboquant:6", "affine:2", "affine:4", "affine:8"})
    for (const Role role : {Role::keys, Role::values}) {
      constexpr int kDim = 80, kTokens = 150;
      Layout layout(Codec::make(Spec::parse(name), role, kDim), kFullBlockTokens, Arrangement::fragments);
      const size_t other = 96;  // the other side's bytes lie between the blocks and must stay
      layout.stride = layout.block_bytes + other;
      std::vector<uint8_t> blocks(layout.blocks(kTokens) * layout.stride, 0x5a);
      std::vector<std::vector<Code>> codes(kTokens, std::vector<Code>(kDim));
      std::vector<std::vector<float>> scalars(kTokens, std::vector<float>(layout.scalar_rows));
      for (int round = 0; round < 2; ++round)
        for (int t = 0; t < kTokens; ++t) {
          std::vector<float> x(kDim);
          for (float& v : x) v = std::normal_distribution<float>()(rng);
          layout.codec->encode(x, codes[t], scalars[t]);
          layout.put(blocks.data(), t, codes[t], scalars[t]);
        }
      for (int t = 0; t < kTokens; ++t) {
        std::vector<Code> c(kDim);
        std::vector<float> s(layout.scalar_rows);
        layout.get(blocks.data(), t, c, s);
        EXPECT_EQ(c, codes[t]) << name << " token " << t;
        EXPECT_EQ(s, scalars[t]) << name << " token " << t;
      }
      for (size_t block = 0; block < layout.blocks(kTokens); ++block)
        for (size_t i = 0; i < other; ++i) ASSERT_EQ(blocks[block * layout.stride + layout.block_bytes + i], 0x5a);
    }
}

TEST(Fragment, CodecsWithoutTilesAreRefused) {
  for (const char* name : {"turboquant-rvq:2+1", "affine:3", "full:fp32"})
    EXPECT_FALSE(Layout::fits_fragments(*Codec::make(Spec::parse(name), Role::keys, 64)));
  EXPECT_FALSE(Layout::fits_fragments(*Codec::make(Spec::parse("affine:4"), Role::keys, 72)));
  EXPECT_THROW(Layout(Codec::make(Spec::parse("affine:3"), Role::keys, 64), 16, Arrangement::fragments), Error);
}

}  // namespace
}  // namespace tersor::codec
