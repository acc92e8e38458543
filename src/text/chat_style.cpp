#include "text/chat_style.h"

#include "text/template_source.h"

namespace tersor::text {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool any_code(const std::vector<TemplateTag>& tags, std::string_view part) {
  for (const TemplateTag& tag : tags) {
    if (contains(tag.code, part)) return true;
  }
  return false;
}

// {% set system_message = "..." %}, and the default_system_message of others.
void take_default_system(const std::vector<TemplateTag>& tags, ChatStyle& style) {
  style.default_system = literal_between(tags, "<|im_start|>system\n", "<|im_end|>");
  if (!style.default_system) style.default_system = literal_between(tags, "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>");
  if (style.default_system) return;
  for (const LiteralPlace& literal : template_literals(tags)) {
    if (literal.tag->kind != TemplateTag::Kind::statement || !literal.before().ends_with("system_message=") || literal.text().empty())
      continue;
    if (literal.after().starts_with("+"))
      style.default_system_unknown = true;
    else
      style.default_system = literal.text();
    return;
  }
}

// The date is the template's own fallback: a computed one would make the same input give another text tomorrow.
void take_system_lines(const std::vector<TemplateTag>& tags, ChatStyle& style) {
  std::string cutoff, date;
  bool dated = false;
  for (const LiteralPlace& literal : template_literals(tags)) {
    if (literal.text().starts_with("Cutting Knowledge Date: ")) cutoff = literal.text();
    if (literal.text() == "Today Date: ") dated = true;
    if (literal.before().ends_with("date_string=") && date.empty()) date = literal.text();
  }
  if (dated) style.system_lines = cutoff + "Today Date: " + date + "\n\n";
}

void take_mistral_reply(const std::vector<TemplateTag>& tags, ChatStyle& style) {
  for (const TemplateTag& tag : tags) {
    const size_t content = tag.code.find("message.content");
    const size_t eos = tag.code.find("+eos_token");
    if (tag.kind != TemplateTag::Kind::expression || content == std::string::npos || eos == std::string::npos || eos < content) continue;
    style.trim_reply = contains(tag.code, ".content|trim");
    for (const LiteralPlace& literal : template_literals({&tag, 1})) {
      if (literal.at + 2 == content) style.reply_before = literal.text();
      if (literal.at == eos + std::string_view("+eos_token+").size()) style.reply_after = literal.text();
    }
    return;
  }
}

void take_mistral(const std::vector<TemplateTag>& tags, ChatStyle& style) {
  bool block = false, opened = false, closed = false;
  for (const LiteralPlace& literal : template_literals(tags)) {
    block = block || contains(literal.text(), "[SYSTEM_PROMPT]");
    if (!opened && contains(literal.text(), "[INST]")) opened = true, style.open = literal.text();
    if (!closed && contains(literal.text(), "[/INST]")) closed = true, style.close = literal.text();
  }
  if (block) {
    style.system = ChatStyle::System::block;
  } else {
    for (const TemplateTag& tag : tags) {
      if (tag.kind != TemplateTag::Kind::statement || !contains(tag.code, "system_message")) continue;
      if (contains(tag.code, "loop.first")) style.system = ChatStyle::System::first_user;
      if (contains(tag.code, "loop.last")) style.system = ChatStyle::System::last_user;
    }
  }
  take_mistral_reply(tags, style);
}

}  // namespace

ChatStyle chat_style(std::string_view chat_template) {
  const std::vector<TemplateTag> tags = template_tags(chat_template);
  ChatStyle style;
  style.bos = any_code(tags, "bos_token");
  style.trim = any_code(tags, ".content|trim");
  style.drops_thinking = any_code(tags, "content.split($)[-1].lstrip($)");
  take_default_system(tags, style);
  take_system_lines(tags, style);
  if (contains(chat_template, "[INST]")) take_mistral(tags, style);
  return style;
}

}  // namespace tersor::text
