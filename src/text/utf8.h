// UTF-8 as the Unicode standard defines it, and the few character classes that are needed outside regular expressions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tersor::text {

/// The first character of a text. `size` is its bytes; for an ill-formed start `valid` is false and `size` covers the maximal
/// subpart (at least one byte). `truncated`: the text ends inside a character that more bytes could still complete.
struct Utf8Char {
  char32_t value = 0;
  uint8_t size = 0;
  bool valid = false, truncated = false;
};
Utf8Char first_char(std::string_view text);

/// Offset of the first ill-formed byte, or npos.
size_t find_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t value);

bool is_white_space(char32_t value);  // Unicode's White_Space

/// Bytes of white space at the start, and at the end, of a valid text.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

/// What Python's str.strip() leaves, which is what a template's `trim` does.
std::string_view python_strip(std::string_view text);

/// A piece of untrusted text for a message: in quotes, on one line, control characters escaped, at most about 60 bytes.
std::string show(std::string_view text);

}  // namespace tersor::text
