#include "text/template_source.h"

namespace tersor::text {
namespace {

using Kind = TemplateTag::Kind;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
}

char unescaped(char letter) { return letter == 'n' ? '\n' : letter == 't' ? '\t' : letter == 'r' ? '\r' : letter; }

// A string literal that starts at text[at] with its quote; returns where it ends.
size_t take_literal(std::string_view text, size_t at, TemplateTag& tag) {
  const char quote = text[at++];
  std::string literal;
  for (; at < text.size() && text[at] != quote; ++at) {
    if (text[at] == '\\' && at + 1 < text.size())
      literal.push_back(unescaped(text[++at]));
    else
      literal.push_back(text[at]);
  }
  tag.code.push_back(kLiteral);
  tag.literals.push_back(std::move(literal));
  return at + 1;
}

// The inside of a tag up to `close`; returns the place after it.
size_t take_tag(std::string_view text, size_t at, std::string_view close, TemplateTag& tag) {
  while (at < text.size() && !text.substr(at).starts_with(close)) {
    const char c = text[at];
    if (c == '\'' || c == '"') {
      at = take_literal(text, at, tag);
    } else {
      const bool control = c == '-' && (text.substr(at + 1).starts_with(close) || tag.code.empty());
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r' && c != kLiteral && !control) tag.code.push_back(c);
      ++at;
    }
  }
  return at + close.size();
}

}  // namespace

std::vector<TemplateTag> template_tags(std::string_view source) {
  std::string text(source);
  replace_all(text, "['content']", ".content");
  replace_all(text, "[\"content\"]", ".content");
  replace_all(text, "['role']", ".role");
  replace_all(text, "[\"role\"]", ".role");
  std::vector<TemplateTag> tags;
  const std::string_view all = text;
  for (size_t at = 0; at < all.size();) {
    const size_t open = [&] {
      for (size_t i = at; i + 1 < all.size(); ++i) {
        if (all[i] == '{' && (all[i + 1] == '{' || all[i + 1] == '%' || all[i + 1] == '#')) return i;
      }
      return all.size();
    }();
    if (open > at) tags.push_back({Kind::text, std::string(1, kLiteral), {std::string(all.substr(at, open - at))}});
    if (open == all.size()) break;
    if (all[open + 1] == '#') {
      const size_t end = all.find("#}", open + 2);
      at = end == std::string_view::npos ? all.size() : end + 2;
      continue;
    }
    const bool expression = all[open + 1] == '{';
    tags.push_back({expression ? Kind::expression : Kind::statement, {}, {}});
    at = take_tag(all, open + 2, expression ? "}}" : "%}", tags.back());
  }
  return tags;
}

std::vector<LiteralPlace> template_literals(std::span<const TemplateTag> tags) {
  std::vector<LiteralPlace> places;
  for (const TemplateTag& tag : tags) {
    size_t index = 0;
    for (size_t at = 0; at < tag.code.size(); ++at) {
      if (tag.code[at] == kLiteral) places.push_back({&tag, index++, at});
    }
  }
  return places;
}

std::optional<std::string> literal_between(const std::vector<TemplateTag>& tags, std::string_view open, std::string_view close) {
  for (const TemplateTag& tag : tags) {
    for (const std::string& literal : tag.literals) {
      const size_t start = literal.find(open);
      if (start == std::string::npos) continue;
      const size_t end = literal.find(close, start + open.size());
      if (end != std::string::npos && end > start + open.size()) return literal.substr(start + open.size(), end - start - open.size());
    }
  }
  return std::nullopt;
}

}  // namespace tersor::text
