// Renders conversations the way the templates of four families do.
#include "tersor/base.h"
#include "tersor/text.h"
#include "text/chat_style.h"
#include "text/template_source.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

using Parts = std::vector<Tokenizer::Part>;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void mark(Parts& parts, std::string text) { parts.push_back({std::move(text), true}); }
void plain(Parts& parts, std::string_view text) { parts.push_back({std::string(text), false}); }

bool has_system(std::span<const Message> messages) { return !messages.empty() && messages[0].role == "system"; }

void check_messages(std::span<const Message> messages) {
  if (messages.empty()) throw Error("a conversation needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != "system" && role != "user" && role != "assistant")
      throw Error("message " + std::to_string(i) + " has the role " + show(role) + "; the roles are system, user and assistant");
    if (const size_t bad = find_invalid_utf8(content); bad != std::string::npos)
      throw Error("message " + std::to_string(i) + " is not valid UTF-8 at byte " + std::to_string(bad) + "; convert it to UTF-8 first");
  }
}

void need_special(const Tokenizer& tokenizer, ChatFormat format, std::initializer_list<std::string_view> contents) {
  for (const std::string_view content : contents) {
    const auto id = tokenizer.id_of(content);
    if (!id || !tokenizer.is_special(*id))
      throw Error("the tokenizer has no special token " + std::string(content) + ", which the chat format " + std::string(name_of(format)) +
                  " needs");
  }
}

std::string_view trimmed(std::string_view text, bool trim) { return trim ? python_strip(text) : text; }

// ---- ChatML and Qwen

void chatml_block(Parts& parts, std::string_view role, std::string_view before, std::string_view content) {
  mark(parts, "<|im_start|>" + std::string(role) + "\n" + std::string(before));
  plain(parts, content);
  mark(parts, "<|im_end|>\n");
}

std::string_view without_newlines(std::string_view text, bool front, bool back) {
  while (front && text.starts_with('\n')) text.remove_prefix(1);
  while (back && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Qwen 3: earlier replies lose their reasoning, replies after the last question show it.
void thinking_reply(Parts& parts, std::string_view content, bool after_last_question, bool last) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  std::string_view reasoning;
  if (const size_t end = content.rfind(kClose); end != std::string_view::npos) {
    reasoning = without_newlines(content.substr(0, content.find(kClose)), false, true);
    if (const size_t start = reasoning.rfind(kOpen); start != std::string_view::npos) reasoning.remove_prefix(start + kOpen.size());
    reasoning = without_newlines(reasoning, true, true);
    content = without_newlines(content.substr(end + kClose.size()), true, false);
  }
  if (!after_last_question || (!last && reasoning.empty())) return chatml_block(parts, "assistant", "", content);
  mark(parts, "<|im_start|>assistant\n<think>\n");
  plain(parts, reasoning);
  mark(parts, "\n</think>\n\n");
  plain(parts, without_newlines(content, true, false));
  mark(parts, "<|im_end|>\n");
}

void render_chatml(Parts& parts, const ChatStyle& style, std::span<const Message> messages, bool continuation) {
  if (continuation) mark(parts, "<|im_end|>\n");
  if (!continuation && !has_system(messages) && style.default_system)
    mark(parts, "<|im_start|>system\n" + *style.default_system + "<|im_end|>\n");
  size_t last_question = messages.size() - 1;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_question = i;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = trimmed(messages[i].content, style.trim);
    if (style.drops_thinking && messages[i].role == "assistant")
      thinking_reply(parts, content, i > last_question, i + 1 == messages.size());
    else
      chatml_block(parts, messages[i].role, "", content);
  }
  mark(parts, "<|im_start|>assistant\n");
}

// ---- Llama 3

void llama3_block(Parts& parts, std::string_view role, std::string_view before, std::string_view content) {
  mark(parts, "<|start_header_id|>" + std::string(role) + "<|end_header_id|>\n\n" + std::string(before));
  plain(parts, content);
  mark(parts, "<|eot_id|>");
}

void render_llama3(Parts& parts, const ChatStyle& style, std::span<const Message> messages, bool continuation) {
  if (continuation) mark(parts, "<|eot_id|>");
  if (!continuation && style.system_lines) {
    const bool given = has_system(messages);
    llama3_block(parts, "system", *style.system_lines, given ? python_strip(messages[0].content) : std::string_view());
    if (given) messages = messages.subspan(1);
  } else if (!continuation && !has_system(messages) && style.default_system) {
    mark(parts, "<|start_header_id|>system<|end_header_id|>\n\n" + *style.default_system + "<|eot_id|>");
  }
  for (const Message& message : messages) llama3_block(parts, message.role, "", trimmed(message.content, style.trim));
  mark(parts, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// ---- Mistral

void check_mistral_order(std::span<const Message> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != (i % 2 == 0 ? "user" : "assistant"))
      throw Error("the mistral chat format takes user and assistant messages in turn, after at most one system message; message " +
                  std::to_string(i) + " of these is from " + messages[i].role);
  }
}

void render_mistral(Parts& parts, const ChatStyle& style, std::span<const Message> messages, bool continuation, const std::string& eos) {
  using System = ChatStyle::System;
  const bool given = has_system(messages);
  if (given && (continuation || style.system == System::refused))
    throw Error("this chat format (mistral) takes no system message here; put it into the user's message");
  if (continuation) mark(parts, eos + style.reply_after);
  std::string_view system = given ? std::string_view(messages[0].content) : std::string_view();
  if (!given && !continuation && style.default_system) system = *style.default_system;
  if (!given && !continuation && style.default_system_unknown)
    throw Error("the template's own system line depends on the date, which is not supported: give a system message");
  const bool with_system = given || !system.empty();
  if (given) messages = messages.subspan(1);
  check_mistral_order(messages);
  if (with_system && style.system == System::block) {
    mark(parts, "[SYSTEM_PROMPT]");
    plain(parts, system);
    mark(parts, "[/SYSTEM_PROMPT]");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "assistant") {
      mark(parts, style.reply_before);
      plain(parts, trimmed(message.content, style.trim_reply));
      mark(parts, eos + style.reply_after);
      continue;
    }
    mark(parts, style.open);
    const bool here = (style.system == System::first_user && i == 0) || (style.system == System::last_user && i + 1 == messages.size());
    if (with_system && here) {
      plain(parts, system);
      mark(parts, "\n\n");
    }
    plain(parts, message.content);
    mark(parts, style.close);
  }
}

// The name of the role straight after <|im_start|>, as every template that only frames messages writes it.
bool frames_chatml(std::string_view chat_template) {
  const auto tags = template_tags(chat_template);
  for (size_t i = 0; i < tags.size(); ++i) {
    for (size_t at = 0, index = 0; at < tags[i].code.size(); ++at) {
      if (tags[i].code[at] != kLiteral) continue;
      if (!std::string_view(tags[i].literals[index++]).ends_with("<|im_start|>")) continue;
      if (std::string_view(tags[i].code).substr(at + 1).starts_with("+message.role")) return true;
      if (at + 1 == tags[i].code.size() && i + 1 < tags.size() && tags[i + 1].code.starts_with("message.role")) return true;
    }
  }
  return false;
}

}  // namespace

std::string_view name_of(ChatFormat format) {
  switch (format) {
    case ChatFormat::none: return "none";
    case ChatFormat::chatml: return "chatml";
    case ChatFormat::llama3: return "llama3";
    case ChatFormat::mistral: return "mistral";
    case ChatFormat::qwen: return "qwen";
  }
  return "?";
}

ChatFormat recognise_chat(std::string_view chat_template) {
  if (contains(chat_template, "<|start_header_id|>") && contains(chat_template, "<|eot_id|>")) return ChatFormat::llama3;
  if (contains(chat_template, "<|im_start|>") && contains(chat_template, "<|im_end|>")) {
    // SmolLM3 writes a header with a date and a reasoning mode, which is more than a frame.
    if (!frames_chatml(chat_template) || contains(chat_template, "## Metadata")) return ChatFormat::none;
    const bool qwen = contains(chat_template, "Qwen") || (contains(chat_template, "</think>") && contains(chat_template, "<tool_call>"));
    return qwen ? ChatFormat::qwen : ChatFormat::chatml;
  }
  // Llama 2 writes its system line between <<SYS>> marks.
  if (contains(chat_template, "[INST]") && contains(chat_template, "[/INST]") && !contains(chat_template, "<<SYS>>"))
    return ChatFormat::mistral;
  return ChatFormat::none;
}

std::vector<int32_t> apply_chat(const Tokenizer& tokenizer, ChatFormat format, std::span<const Message> messages, bool continuation) {
  check_messages(messages);
  const ChatStyle style = chat_style(tokenizer.data().chat_template);
  Parts parts;
  switch (format) {
    case ChatFormat::none:
      throw Error("the model has no chat template that is known (chatml, llama3, mistral, qwen); give the prompt as plain text");
    case ChatFormat::chatml:
    case ChatFormat::qwen:
      need_special(tokenizer, format, {"<|im_start|>", "<|im_end|>"});
      render_chatml(parts, style, messages, continuation);
      break;
    case ChatFormat::llama3:
      need_special(tokenizer, format, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
      render_llama3(parts, style, messages, continuation);
      break;
    case ChatFormat::mistral: {
      const auto eos = tokenizer.data().eos;
      if (!eos || !tokenizer.is_special(*eos)) throw Error("the tokenizer names no special eos token, which the chat format mistral needs");
      render_mistral(parts, style, messages, continuation, tokenizer.token_bytes(*eos));
      break;
    }
  }
  std::vector<int32_t> ids;
  if (style.bos && !continuation && tokenizer.data().bos) ids.push_back(*tokenizer.data().bos);
  const std::vector<int32_t> rest = tokenizer.encode_parts(parts);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

}  // namespace tersor::text
