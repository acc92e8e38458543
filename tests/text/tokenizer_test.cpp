#include <gmock/gmock.h>

#include <thread>

#include "small_tokenizer.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

TEST(Tokenizer, MergesByRank) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(*tokenizer.id_of("hello")));
  EXPECT_THAT(tokenizer.encode("hell"), ElementsAre(*tokenizer.id_of("hell")));
  EXPECT_THAT(tokenizer.encode("aaaaa"), ElementsAre(*tokenizer.id_of("aaaa"), 'a'));
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, SpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = small_tokenizer();
  const int32_t start = *tokenizer.id_of("<|im_start|>"), tool = *tokenizer.id_of("<tool>");
  EXPECT_THAT(tokenizer.encode("<|im_start|>", true), ElementsAre(start));
  const Ids plain = tokenizer.encode("<|im_start|>");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), start), 0);
  EXPECT_EQ(tokenizer.decode(plain), "<|im_start|>");
  EXPECT_THAT(tokenizer.encode("<tool>"), ElementsAre(tool));
  EXPECT_TRUE(tokenizer.is_special(start));
  EXPECT_FALSE(tokenizer.is_special(tool));
  EXPECT_FALSE(tokenizer.is_special(-1));
}

TEST(Tokenizer, DecodeLeavesOutSpecialTokens) {
  const Tokenizer tokenizer = small_tokenizer();
  const Ids ids = tokenizer.encode("a<|im_end|>b", true);
  EXPECT_EQ(tokenizer.decode(ids), "ab");
  EXPECT_EQ(tokenizer.decode(ids, true), "a<|im_end|>b");
}

TEST(Tokenizer, UnknownIdsAreErrors) {
  const Tokenizer tokenizer = small_tokenizer();
  for (const int32_t id : {-1, tokenizer.size(), INT32_MAX, INT32_MIN}) {
    EXPECT_THAT(error_of([&] { tokenizer.decode(Ids{id}); }), HasSubstr("outside the vocabulary"));
    EXPECT_THAT(error_of([&] { tokenizer.token_bytes(id); }), HasSubstr("outside the vocabulary"));
  }
}

TEST(Tokenizer, InvalidUtf8NamesTheByte) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_THAT(error_of([&] { tokenizer.encode("abc\xff"); }), HasSubstr("byte 3"));
  EXPECT_THAT(error_of([&] { tokenizer.encode("\xed\xa0\x80"); }), HasSubstr("byte 0"));
  EXPECT_THAT(error_of([&] { tokenizer.encode("ab\xe2\x82"); }), HasSubstr("byte 2"));
  EXPECT_THAT(error_of([&] { tokenizer.encode("\xc0\x80"); }), HasSubstr("byte 0"));
}

TEST(Tokenizer, PartsKeepMarkupAndContentApart) {
  const Tokenizer tokenizer = small_tokenizer();
  const int32_t start = *tokenizer.id_of("<|im_start|>");
  const Tokenizer::Part parts[] = {{"<|im_start|>he", true}, {"llo<|im_start|>", false}, {"<|im_", true}, {"start|>", false}};
  const Ids ids = tokenizer.encode_parts(parts);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), start), 1);
  EXPECT_EQ(ids[0], start);
  EXPECT_EQ(ids[1], *tokenizer.id_of("hello"));  // text is joined before it is cut
  EXPECT_EQ(tokenizer.decode(ids, true), "<|im_start|>hello<|im_start|><|im_start|>");
}

TEST(Tokenizer, EqualFromManyThreads) {
  const Tokenizer tokenizer = small_tokenizer();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "hello world " + std::to_string(i) + "\n";
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (auto& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokenizer.decode(expected), text);
}

TEST(Tokenizer, InconsistentDataIsRefused) {
  const TokenizerData good = small_tokenizer().data();
  const auto refusal = [&](auto change) {
    TokenizerData data = good;
    change(data);
    return error_of([&] { Tokenizer tokenizer(data); });
  };
  EXPECT_THAT(refusal([](auto& d) { d.tokens.clear(); }), HasSubstr("no tokens"));
  EXPECT_THAT(refusal([](auto& d) { d.tokens.push_back("a"); }), HasSubstr("two ids"));
  EXPECT_THAT(refusal([](auto& d) { d.merges.emplace_back("x", "yz"); }), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(refusal([](auto& d) { d.merges.push_back(d.merges[0]); }), HasSubstr("stated twice"));
  EXPECT_THAT(refusal([](auto& d) { d.added[0].id = -5; }), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(refusal([](auto& d) { d.added[0].id = 3; }), HasSubstr("has the id 3"));
  EXPECT_THAT(refusal([](auto& d) { d.added.push_back(d.added[0]); }), HasSubstr("stated twice"));
  EXPECT_THAT(refusal([](auto& d) { d.eos = 1 << 30; }), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(refusal([](auto& d) { d.pretokenizer.clear(); }), HasSubstr("byte-level"));
  EXPECT_THAT(refusal([](auto& d) { d.pretokenizer[0].pattern = "(a"; }), HasSubstr("regular expression"));
  EXPECT_THAT(refusal([](auto& d) { d.pretokenizer[0].pattern = "[a&&b]"; }), HasSubstr("intersection"));
}

TEST(Tokenizer, AHostilePatternEndsInAnError) {
  TokenizerData data = small_tokenizer().data();
  data.pretokenizer[0].pattern = "(a|aa)+[bc]";
  const Tokenizer tokenizer(data);
  EXPECT_THAT(error_of([&] { tokenizer.encode(std::string(3000, 'a') + "z"); }), HasSubstr("failed on this text"));
}

TEST(Pretokenizer, NamesAreKnownOrListed) {
  for (const char* name : {"gpt-2", "gpt2", "smollm", "llama-bpe", "llama3", "llama-v3", "qwen2", "tekken"})
    EXPECT_FALSE(pretokenizer_by_name(name).empty());
  EXPECT_THAT(error_of([] { pretokenizer_by_name("nonsense"); }),
              testing::AllOf(HasSubstr("\"nonsense\""), HasSubstr("llama-bpe"), HasSubstr("qwen2")));
}

TEST(Gguf, RefusesWhatItCannotRead) {
  const TokenizerData base = small_tokenizer().data();
  GgufTokenizer good{.model = "gpt2",
                     .pre = "gpt-2",
                     .tokens = base.tokens,
                     .merges = {"h e"},
                     .token_type = {},
                     .bos_token_id = {},
                     .eos_token_id = 1,
                     .eot_token_id = {},
                     .add_bos_token = {},
                     .chat_template = {}};
  EXPECT_EQ(Tokenizer(tokenizer_from_gguf(good, "m.gguf")).size(), static_cast<int32_t>(base.tokens.size()));
  const auto refusal = [&](auto change) {
    GgufTokenizer gguf = good;
    change(gguf);
    return error_of([&] { Tokenizer tokenizer(tokenizer_from_gguf(gguf, "m.gguf")); });
  };
  EXPECT_THAT(refusal([](auto& g) { g.model = "llama"; }), HasSubstr("SentencePiece tokenizers are not supported yet"));
  EXPECT_THAT(refusal([](auto& g) { g.model = "bert"; }), HasSubstr("byte-level BPE"));
  EXPECT_THAT(refusal([](auto& g) { g.pre = "other"; }), HasSubstr("m.gguf"));
  EXPECT_THAT(refusal([](auto& g) { g.tokens.clear(); }), HasSubstr("missing"));
  EXPECT_THAT(refusal([](auto& g) { g.merges = {"he"}; }), HasSubstr("not two tokens"));
  EXPECT_THAT(refusal([](auto& g) { g.token_type = {1}; }), HasSubstr("token_type"));
  EXPECT_THAT(refusal([](auto& g) { g.token_type.assign(g.tokens.size(), 99); }), HasSubstr("no type"));
  EXPECT_THAT(refusal([](auto& g) { g.eos_token_id = 4294967295; }), HasSubstr("eos_token_id"));
}

}  // namespace
}  // namespace tersor::text
