// What a file or a stray string is, in words for error lines.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tersor {

/// What the first bytes look like: "an HTML page", "a git-lfs pointer", ...; with the remedy where there is one.
std::string describe_content(std::span<const std::byte> bytes);

/// Text taken from a file, fit for one line of an error: control characters and bytes above 126 become '?', at most `limit` characters.
std::string printable(std::string_view text, size_t limit = 96);

/// The same in double quotes.
std::string in_quotes(std::string_view text);

/// "[3, 4]"
template <class Dims>
std::string shape_text(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace tersor
