// Tokens that are found in the text as written, before anything is cut or merged.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersor/text.h"
#include "text/flat_map.h"
#include "text/regex.h"

namespace tersor::text {

/// A run of text, or one token found in it.
struct Span {
  size_t start, end;
  int32_t id = -1;  // -1: text
};

/// Finds the tokens of one set: from left to right, the longest at each place; matches do not overlap.
/// lstrip and rstrip take the white space beside a token into it; single_word tokens count only where no word character touches them.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Throws Error for contents that are empty, too long, or stated twice.
  explicit AddedTokens(std::span<const TokenizerData::Added> tokens);

  bool empty() const { return tokens_.empty(); }

  /// Appends runs of text and tokens that cover the text. Without `specials`, what a special token matches stays text (and is not
  /// searched for other tokens).
  void split(std::string_view text, bool specials, std::vector<Span>& out) const;

  /// The same, but only special tokens, and only such that lie wholly inside one of the `windows` (ascending, disjoint).
  void split_windows(std::string_view text, std::span<const std::pair<size_t, size_t>> windows, std::vector<Span>& out) const;

 private:
  struct Walk;  // one pass over a text
  /// Longest token at text[at], its index, or -1.
  int64_t longest_at(std::string_view text, size_t at, size_t limit) const;
  void scan(Walk& walk, size_t from, size_t to) const;
  void take(Walk& walk, size_t start, size_t end, const TokenizerData::Added& token) const;
  bool stands_alone(std::string_view text, size_t start, size_t end) const;

  std::vector<TokenizerData::Added> tokens_;
  FlatMap edges_;                       // node, byte -> node
  std::vector<int64_t> token_of_node_;  // index into tokens_, or -1
  bool first_byte_[256] = {};
};

}  // namespace tersor::text
