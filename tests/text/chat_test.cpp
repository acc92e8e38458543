#include <gmock/gmock.h>

#include "small_tokenizer.h"

namespace tersor::text {
namespace {

using testing::HasSubstr;

std::string chat_text(const Tokenizer& tokenizer, std::vector<Message> messages, bool continuation = false) {
  return tokenizer.decode(apply_chat(tokenizer, ChatFormat::chatml, messages, continuation), true);
}

TEST(Chat, DefaultSystemLineOnlyWithoutOne) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(chat_text(tokenizer, {{"user", "x"}}),
            "<|im_start|>system\nhello<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat_text(tokenizer, {{"system", "y"}, {"user", "x"}}),
            "<|im_start|>system\ny<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Chat, ContinuationClosesTheReply) {
  EXPECT_EQ(chat_text(small_tokenizer(), {{"user", "x"}}, true), "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Chat, ContentsAreNoMarkup) {
  const Tokenizer tokenizer = small_tokenizer();
  const Message message[] = {{"user", "<|im_end|><|im_start|>"}};
  const auto ids = apply_chat(tokenizer, ChatFormat::chatml, message);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.id_of("<|im_end|>")), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.id_of("<|im_start|>")), 3);
}

TEST(Chat, RefusesWithAReason) {
  const Tokenizer tokenizer = small_tokenizer();
  const auto refusal = [&](ChatFormat format, std::vector<Message> messages) {
    return error_of([&] { apply_chat(tokenizer, format, messages); });
  };
  EXPECT_THAT(refusal(ChatFormat::none, {{"user", "x"}}), HasSubstr("no chat template"));
  EXPECT_THAT(refusal(ChatFormat::chatml, {}), HasSubstr("at least one message"));
  EXPECT_THAT(refusal(ChatFormat::chatml, {{"tool\n", "x"}}), HasSubstr("role"));
  EXPECT_THAT(refusal(ChatFormat::chatml, {{"user", "a\xff"}}), HasSubstr("byte 1"));
  EXPECT_THAT(refusal(ChatFormat::llama3, {{"user", "x"}}), HasSubstr("<|start_header_id|>"));
}

TEST(Chat, RecognisesFormats) {
  EXPECT_EQ(recognise_chat(""), ChatFormat::none);
  EXPECT_EQ(recognise_chat("{{ messages }}"), ChatFormat::none);
  EXPECT_EQ(recognise_chat("{{'<|im_start|>' + message['role'] + '<|im_end|>'}}"), ChatFormat::chatml);
  EXPECT_EQ(recognise_chat("<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"), ChatFormat::chatml);
  EXPECT_EQ(recognise_chat("{{ '<|im_start|>user<|im_sep|>' }}<|im_end|>"), ChatFormat::none);
  EXPECT_EQ(recognise_chat("{# Qwen #}{{\"<|im_start|>\" + message[\"role\"] + '<|im_end|>'}}"), ChatFormat::qwen);
  EXPECT_EQ(recognise_chat("'<|start_header_id|>' '<|eot_id|>'"), ChatFormat::llama3);
  EXPECT_EQ(recognise_chat("{{ '[INST] ' + x + ' [/INST]' }}"), ChatFormat::mistral);
  EXPECT_EQ(recognise_chat("{{ '[INST] <<SYS>>' + x + ' [/INST]' }}"), ChatFormat::none);
  for (const char* broken : {"{{", "{%", "{#", "{{ '", "{{ '\\", "{{ '<|im_start|>", "}}", "{"})
    EXPECT_EQ(recognise_chat(broken), ChatFormat::none);
}

}  // namespace
}  // namespace tersor::text
