#include <gmock/gmock.h>

#include <random>

#include "small_tokenizer.h"

namespace tersor::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string refusal_of_text(const std::string& text, const std::string& config = "") {
  return error_of([&] { Tokenizer tokenizer(parse_tokenizer_json(text, config, "dir/tokenizer.json")); });
}

// The refusal when the value at a JSON pointer is replaced.
std::string refusal(const char* pointer, const json& value) {
  json changed = small_json();
  changed[json::json_pointer(pointer)] = value;
  return refusal_of_text(changed.dump());
}

TEST(TokenizerJson, ReadsAllOfTheSmallOne) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.data().merges.size(), 7u);
  EXPECT_EQ(tokenizer.data().eos, tokenizer.id_of("<|im_end|>"));
  EXPECT_EQ(tokenizer.data().end_tokens, std::vector<int32_t>{*tokenizer.id_of("<|im_end|>")});
  EXPECT_FALSE(tokenizer.data().add_bos);
  EXPECT_EQ(recognise_chat(tokenizer.data().chat_template), ChatFormat::chatml);
}

TEST(TokenizerJson, EveryRefusalNamesThePlace) {
  EXPECT_THAT(refusal("/model/type", "Unigram"),
              AllOf(HasSubstr("dir/tokenizer.json.model"), HasSubstr("SentencePiece tokenizers are not supported yet")));
  EXPECT_THAT(refusal("/model/type", "WordPiece"), HasSubstr("\"WordPiece\" is not supported"));
  EXPECT_THAT(refusal("/model/byte_fallback", true), HasSubstr("SentencePiece tokenizers are not supported yet"));
  EXPECT_THAT(refusal("/model/vocab/a", "x"), HasSubstr("not a whole number"));
  EXPECT_THAT(refusal("/model/vocab/a", -1), HasSubstr("outside"));
  EXPECT_THAT(refusal("/model/vocab/a", 4000000000u), HasSubstr("outside"));
  EXPECT_THAT(refusal("/model/vocab/a", 18446744073709551615u), HasSubstr("outside"));
  EXPECT_THAT(refusal("/model/vocab/a", 98), HasSubstr("belongs to"));
  EXPECT_THAT(refusal("/model/vocab", json::array()), HasSubstr("not an object"));
  EXPECT_THAT(refusal("/model/merges/2", "x"), HasSubstr("merges[2]"));
  EXPECT_THAT(refusal("/model/merges/2", json::array({"h"})), HasSubstr("not two tokens"));
  EXPECT_THAT(refusal("/model/merges/2", 7), HasSubstr("merges[2]"));
  EXPECT_THAT(refusal("/model/unk_token", "<none>"), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(refusal("/added_tokens/0/id", 1 << 30), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(refusal("/added_tokens/0/content", ""), HasSubstr("empty"));
  EXPECT_THAT(refusal("/added_tokens/0/special", "yes"), HasSubstr("neither true nor false"));
  EXPECT_THAT(refusal("/normalizer", {{"type", "Lowercase"}}), HasSubstr("\"Lowercase\""));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("SentencePiece"));
  EXPECT_THAT(refusal("/pre_tokenizer", nullptr), HasSubstr("ByteLevel"));
  EXPECT_THAT(refusal("/pre_tokenizer/pretokenizers/0/behavior", "Odd"), HasSubstr("\"Odd\""));
  EXPECT_THAT(refusal("/pre_tokenizer/pretokenizers/0/pattern", json::object()), HasSubstr("String"));
  EXPECT_THAT(refusal("/decoder", {{"type", "Metaspace"}}), HasSubstr("SentencePiece"));
  EXPECT_THAT(refusal("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("\"BertProcessing\""));
}

TEST(TokenizerJson, BrokenTextIsRefused) {
  const std::string good = small_json().dump();
  EXPECT_THAT(refusal_of_text(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal_of_text(good.substr(0, good.size() / 2)), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(refusal_of_text("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal_of_text(std::string(100000, '[')), HasSubstr("nests deeper"));
  EXPECT_THAT(refusal_of_text(R"({"model": {}, "model": {}})"), HasSubstr("stated twice"));
  EXPECT_THAT(refusal_of_text("{\"a\": 1e999999}"), Not(HasSubstr("no error")));
  EXPECT_THAT(refusal_of_text(good, "{"), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(refusal_of_text(good, R"({"eos_token": "nowhere"})"), HasSubstr("\"nowhere\""));
  EXPECT_THAT(refusal_of_text(good, R"({"chat_template": 7})"), HasSubstr("chat_template"));
}

TEST(TokenizerJson, BosFromTheTemplate) {
  json changed = small_json();
  changed["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  const TokenizerData data = parse_tokenizer_json(changed.dump(), R"({"add_bos_token": false})", "t");
  EXPECT_TRUE(data.add_bos);
  EXPECT_EQ(data.bos, 263);
}

json random_value(std::mt19937& random) {
  switch (random() % 9) {
    case 0: return nullptr;
    case 1: return random() % 2 == 0;
    case 2: return static_cast<int>(random() % 600) - 20;
    case 3: return 18446744073709551615u;
    case 4: return 0.5;
    case 5: return "";
    case 6: return std::string(1 + random() % 5, static_cast<char>('a' + random() % 26));
    case 7: return json::array();
    default: return json::object();
  }
}

// Walks to a random value and replaces or removes it.
void mutate(json& node, std::mt19937& random) {
  if ((node.is_object() || node.is_array()) && !node.empty() && random() % 8 != 0) {
    auto child = node.begin();
    std::advance(child, random() % node.size());
    if (random() % 10 == 0)
      node.erase(child);
    else
      mutate(*child, random);
    return;
  }
  node = random_value(random);
}

void try_text(const std::string& text) {
  try {
    const Tokenizer tokenizer(parse_tokenizer_json(text, "", "fuzz"));
    const auto ids = tokenizer.encode("hello world 12345 <|im_start|> \xC3\xA9\xE6\x97\xA5", true);
    tokenizer.decode(ids, true);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(TokenizerJson, MutationsNeverCrash) {
  std::mt19937 random(7);
  const json good = small_json();
  const std::string text = good.dump();
  for (int round = 0; round < 1500; ++round) {
    json changed = good;
    for (size_t i = 1 + random() % 3; i > 0; --i) mutate(changed, random);
    try_text(changed.dump(-1, ' ', false, json::error_handler_t::replace));
    std::string bytes = text;
    for (size_t i = 1 + random() % 4; i > 0; --i) bytes[random() % bytes.size()] = static_cast<char>(random());
    try_text(bytes);
    if (round % 10 == 0) try_text(text.substr(0, random() % text.size()));
  }
}

}  // namespace
}  // namespace tersor::text
