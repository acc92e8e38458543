#include <gtest/gtest.h>

#include <random>

#include "small_tokenizer.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("abc"), "abc");
  EXPECT_EQ(replace_invalid_utf8("\xff\x41"), r + "A");
  // The example of the Unicode standard, table 3-8 and its neighbours.
  EXPECT_EQ(replace_invalid_utf8("\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"), r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(StreamDecoder, GivesWholeCharactersOnly) {
  const Tokenizer tokenizer = small_tokenizer();
  StreamDecoder stream(tokenizer);
  const std::string smile = "\xF0\x9F\x98\x80";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream.push(static_cast<uint8_t>(smile[static_cast<size_t>(i)])), "");
  EXPECT_EQ(stream.push(0x80), smile);
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, LeavesOutSpecialTokens) {
  const Tokenizer tokenizer = small_tokenizer();
  StreamDecoder without(tokenizer), with(tokenizer, true);
  EXPECT_EQ(without.push(*tokenizer.id_of("<|im_end|>")), "");
  EXPECT_EQ(with.push(*tokenizer.id_of("<|im_end|>")), "<|im_end|>");
}

TEST(StreamDecoder, EqualsTheWholeForAnyBytes) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 random(1);
  const uint8_t bytes[] = {0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff, 0xe2, 0xc0};
  for (int round = 0; round < 5000; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = random() % 12; i > 0; --i) ids.push_back(bytes[random() % sizeof bytes]);
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
      text += piece;
    }
    text += stream.finish();
    EXPECT_EQ(text, replace_invalid_utf8(tokenizer.decode(ids)));
  }
}

}  // namespace
}  // namespace tersor::text
