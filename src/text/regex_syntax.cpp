#include "tersor/base.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

// Contents of a character class. PCRE2's own \s also takes U+180E, and its \w leaves out marks.
constexpr std::string_view kSpace = "\\x09-\\x0d\\x{85}\\p{Z}";
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
    "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";  // of the other numbers only Latin-1's
constexpr std::string_view kHex = "0-9a-fA-F";

std::string_view class_of(char letter) {
  switch (letter) {
    case 's':
    case 'S': return kSpace;
    case 'w':
    case 'W': return kWord;
    case 'h':
    case 'H': return kHex;
    default: return {};
  }
}

[[noreturn]] void refuse(std::string_view pattern, std::string_view what) {
  throw Error("the pattern " + show(pattern) + " uses " + std::string(what) + ", which is not supported");
}

// An escape at text[0] == '\\'; returns how many bytes it took.
size_t escape(std::string_view pattern, std::string_view text, bool in_class, std::string& out) {
  if (text.size() < 2) refuse(pattern, "a backslash at its end");
  const std::string_view members = class_of(text[1]);
  const bool negated = text[1] == 'S' || text[1] == 'W' || text[1] == 'H';
  if (members.empty()) {
    out += text.substr(0, 2);
  } else if (!in_class) {
    out += negated ? "[^" : "[";
    out += members;
    out += ']';
  } else if (!negated) {
    out += members;
  } else if (text[1] == 'S') {
    out += "\\S";  // differs from the other engine's for U+180E only
  } else {
    refuse(pattern, "\\W or \\H inside a character class");
  }
  return 2;
}

// "(?" followed by option letters with m, which is PCRE2's s.
bool sets_dot_all(std::string_view text) {
  for (size_t i = 2; text.starts_with("(?") && i < text.size(); ++i) {
    if (text[i] == 'm') return true;
    if (text[i] != 'i' && text[i] != 'x' && text[i] != '-') return false;
  }
  return false;
}

}  // namespace

std::string ruby_to_pcre(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    if (rest[0] == '\\') {
      at += escape(pattern, rest, in_class, out);
      continue;
    }
    if (in_class) {
      if (rest.starts_with("&&")) refuse(pattern, "the intersection of character classes");
      if (rest[0] == '[' && !rest.starts_with("[:")) refuse(pattern, "a character class inside another");
      if (rest.starts_with("[:")) {  // a POSIX name, up to its own ":]"
        const size_t end = rest.find(":]");
        if (end == std::string_view::npos) refuse(pattern, "a character class inside another");
        out += rest.substr(0, end + 2);
        at += end + 2;
        continue;
      }
      in_class = rest[0] != ']';
    } else if (rest[0] == '[') {
      in_class = true;
      const size_t head = rest.starts_with("[^") ? 2 : 1;
      out += rest.substr(0, head);
      at += head;
      if (rest.substr(head).starts_with("]")) {  // a bracket that stands first is a member
        out += "\\]";
        ++at;
      }
      continue;
    } else if (sets_dot_all(rest)) {
      refuse(pattern, "the option (?m)");
    }
    out.push_back(rest[0]);
    ++at;
  }
  return out;
}

}  // namespace tersor::text
