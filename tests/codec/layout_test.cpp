// How codes lie in memory: every bit has one place, every place one bit, and writing a token touches no other.
#include "codec/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "codec/rotation.h"
#include "codec/scalar.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

constexpr int kDims[] = {32, 64, 72, 80, 96, 100, 112, 128, 192, 256};

// Calls `body` with the layout of every codec, role and head size.
template <class Body>
void for_every_layout(const std::vector<std::string>& names, const Body& body) {
  for (const std::string& name : names)
    for (const Role role : {Role::keys, Role::values})
      for (const int dim : kDims) {
        if (name.starts_with("turboquant") && !Rotation::is_hadamard(dim)) continue;  // no kernels
        SCOPED_TRACE(name + (role == Role::keys ? " keys " : " values ") + std::to_string(dim));
        body(Layout(make(name, role, dim)));
      }
}

struct Token {
  std::vector<Code> codes;
  Vector scalars;
  bool operator==(const Token&) const = default;
};

Token random_token(Random& random, const Layout& layout) {
  Token token{std::vector<Code>(layout.dim), Vector(layout.scalar_rows)};
  for (Code& code : token.codes) code = static_cast<Code>(random() & ((1u << layout.bits) - 1));
  for (float& scalar : token.scalars) {
    const auto bits = static_cast<uint16_t>(random() % 0x7fff + 1);
    scalar = layout.family == Family::turboquant ? decode_norm(bits) : decode_scale(bits);
  }
  return token;
}

Token read(const Layout& layout, const std::vector<uint8_t>& blocks, int64_t token) {
  Token result{std::vector<Code>(layout.dim), Vector(layout.scalar_rows)};
  layout.get(blocks.data(), token, result.codes, result.scalars);
  return result;
}

TEST(Layout, TokensComeBackWhateverIsWrittenAround) {
  Random random(1);
  for_every_layout(compressed_codecs(), [&](const Layout& layout) {
    constexpr int kTokens = 150;
    std::vector<uint8_t> blocks(layout.bytes(kTokens), 0xff);
    std::vector<Token> tokens(kTokens);
    std::vector<int> order(kTokens);
    std::iota(order.begin(), order.end(), 0);
    for (int pass = 0; pass < 2; ++pass) {  // the second pass overwrites
      std::shuffle(order.begin(), order.end(), random);
      for (const int t : order) {
        tokens[t] = random_token(random, layout);
        layout.put(blocks.data(), t, tokens[t].codes, tokens[t].scalars);
      }
    }
    for (int t = 0; t < kTokens; ++t) ASSERT_EQ(read(layout, blocks, t), tokens[t]) << "token " << t;
  });
}

// Bits that putting a token changes, from all zeros to all ones, as positions in the block.
std::set<size_t> bits_of_token(const Layout& layout, int token) {
  std::vector<uint8_t> blocks(layout.block_bytes, 0);
  const Vector largest(layout.scalar_rows, layout.family == Family::turboquant ? kScalarMax : -kScalarMax);
  layout.put(blocks.data(), token, std::vector<Code>(layout.dim, static_cast<Code>((1u << layout.bits) - 1)), largest);
  std::set<size_t> bits;
  for (size_t i = 0; i < blocks.size() * 8; ++i)
    if (blocks[i / 8] >> (i % 8) & 1) bits.insert(i);
  return bits;
}

TEST(Layout, NoTwoTokensShareABit) {
  for_every_layout({"affine:3,group=32", "affine:5", "affine:8", "affine:6,group=128", "turboquant:1", "turboquant:2", "turboquant:4"},
                   [](const Layout& layout) {
                     if (layout.dim > 112) return;
                     size_t expected = static_cast<size_t>(layout.dim) * layout.bits, total = 0;
                     std::set<size_t> all;
                     for (int t = 0; t < kTileTokens; ++t) {
                       const std::set<size_t> bits = bits_of_token(layout, t);
                       size_t codes = 0;
                       for (const size_t bit : bits) codes += bit < layout.scalars_offset * 8;
                       ASSERT_EQ(codes, expected) << "token " << t;
                       all.insert(bits.begin(), bits.end()), total += bits.size();
                     }
                     EXPECT_EQ(all.size(), total);
                   });
}

// The planes' places are a bijection onto their bytes when the head size needs no padding.
TEST(Layout, PlacesFillThePlanes) {
  for (const int bits : {1, 2, 4, 8})
    for (const int dim : {16, 64, 96, 256})
      for (const Role role : {Role::keys, Role::values}) {
        std::vector<int> used(static_cast<size_t>(kTileTokens) * dim * bits / 8, 0);
        for (int t = 0; t < kTileTokens; ++t)
          for (int d = 0; d < dim; ++d) {
            const BitPlace at = role == Role::keys ? key_place(bits, t, d) : value_place(bits, t, d);
            ASSERT_LT(at.byte, used.size());
            ASSERT_LE(at.shift + bits, 8);
            const int mask = ((1 << bits) - 1) << at.shift;
            ASSERT_EQ(used[at.byte] & mask, 0);
            used[at.byte] |= mask;
          }
        for (const int byte : used) ASSERT_EQ(byte, 0xff);
      }
}

TEST(Layout, BlocksHoldCodesAndScalarsAndNothingElse) {
  for_every_layout(compressed_codecs(), [](const Layout& layout) {
    const size_t padded = (layout.dim + 15) / 16 * 16, scalars = layout.family == Family::affine ? 2 * layout.groups : 1;
    EXPECT_EQ(layout.block_bytes, 64 * padded * layout.bits / 8 + scalars * 64 * 2);
    if (padded == static_cast<size_t>(layout.dim)) {
      EXPECT_DOUBLE_EQ(layout.block_bytes * 8.0, layout.codec->bits_per_element() * 64 * layout.dim);
    }
    size_t end = 0;
    int shift = 0;
    for (int p = 0; p < layout.plane_count; ++p) {
      EXPECT_EQ(layout.planes[p].offset, end);
      EXPECT_EQ(layout.planes[p].shift, shift);
      end += 64 * padded * layout.planes[p].bits / 8, shift += layout.planes[p].bits;
    }
    EXPECT_EQ(shift, layout.bits);
    EXPECT_EQ(layout.scalars_offset, end);
    EXPECT_EQ(layout.blocks(0), 0u);
    EXPECT_EQ(layout.blocks(64), 1u);
    EXPECT_EQ(layout.bytes(65), 2 * layout.block_bytes);
  });
}

TEST(Layout, FullNumbersComeBack) {
  Random random(2);
  for_every_layout({"full:fp16", "full:bf16", "full:fp32"}, [&](const Layout& layout) {
    constexpr int kTokens = 37;
    EXPECT_EQ(layout.block_bytes, 16u * layout.padded_dim * size_of(layout.dtype));
    std::vector<uint8_t> blocks(layout.bytes(kTokens), 0xff);
    std::vector<Vector> tokens;
    for (int t = 0; t < kTokens; ++t) tokens.push_back(roundtrip(*layout.codec, gaussian(random, layout.dim)));
    for (int t = kTokens; t-- > 0;) layout.put_full(blocks.data(), t, tokens[t]);
    std::set<size_t> places;
    for (int t = 0; t < kTokens; ++t) {
      Vector x(layout.dim), y(layout.dim);
      layout.get_full(blocks.data(), t, x);
      layout.decode(blocks.data(), t, y);
      ASSERT_EQ(x, tokens[t]);
      ASSERT_EQ(y, tokens[t]);
      for (int d = 0; d < layout.dim; ++d) places.insert(layout.full_index(t, d));
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(kTokens) * layout.dim);
    EXPECT_LT(*places.rbegin() * size_of(layout.dtype), blocks.size());
  });
}

TEST(Layout, DecodesWhatTheCodecEncoded) {
  Random random(3);
  for_every_layout(compressed_codecs(), [&](const Layout& layout) {
    std::vector<uint8_t> blocks(layout.bytes(70), 0);
    Token token{std::vector<Code>(layout.dim), Vector(std::max(1, 2 * layout.groups))};
    layout.codec->encode(gaussian(random, layout.dim), token.codes, token.scalars);
    layout.put(blocks.data(), 66, token.codes, token.scalars);
    Vector stored(layout.dim), expected(layout.dim);
    layout.decode(blocks.data(), 66, stored);
    layout.codec->decode(token.codes, token.scalars, expected);
    EXPECT_EQ(stored, expected) << "scalars are stored as the codec rounded them";
  });
}

}  // namespace
}  // namespace tersor::codec
