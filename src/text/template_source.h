// What can be learnt from a chat template's source without running it: its tags and the string literals in them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::text {

/// One {{ }} or {% %} tag, or a stretch of text between tags.
struct TemplateTag {
  enum class Kind { text, expression, statement };
  Kind kind;
  /// The code without white space; each string literal is the character kLiteral, x['content'] reads x.content. For text: one kLiteral.
  std::string code;
  std::vector<std::string> literals;  // with escapes resolved
};
inline constexpr char kLiteral = '$';

/// The tags in order; comments are left out. A tag that does not end reaches to the end of the source.
std::vector<TemplateTag> template_tags(std::string_view source);

/// A string literal next to a stretch of code: `index` counts the literals of the tag.
struct LiteralPlace {
  const TemplateTag* tag;
  size_t index, at;  // `at`: of kLiteral in tag->code
  const std::string& text() const { return tag->literals[index]; }
  std::string_view before() const { return std::string_view(tag->code).substr(0, at); }
  std::string_view after() const { return std::string_view(tag->code).substr(at + 1); }
};
/// They point into the tags, which must outlive them.
std::vector<LiteralPlace> template_literals(std::span<const TemplateTag> tags);

/// The text between `open` and `close` inside one literal; none when no literal has both or nothing is between.
std::optional<std::string> literal_between(const std::vector<TemplateTag>& tags, std::string_view open, std::string_view close);

}  // namespace tersor::text
