#include "text/added_tokens.h"

#include <algorithm>

#include "tersor/base.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

// Longer contents would only make the search slow.
constexpr size_t kLongest = 1024;

uint64_t edge(uint64_t node, char byte) { return node << 8 | static_cast<uint8_t>(byte); }

// This \w is that of the Rust crate `regex`: with the two joiners, without Latin-1's other numbers.
bool starts_with_word(std::string_view text) {
  static const Regex word("\\A(?![\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}])[\\w\\x{200c}\\x{200d}]");
  Regex::Scratch scratch;
  bool found = false;
  word.for_each(text.substr(0, first_char(text).size), scratch, [&](size_t, size_t) { found = true; });
  return found;
}

size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace

struct AddedTokens::Walk {
  std::string_view text;
  bool specials, others;
  size_t done = 0;  // everything before is in out
  std::vector<Span>& out;
};

AddedTokens::AddedTokens(std::span<const TokenizerData::Added> tokens) : tokens_(tokens.begin(), tokens.end()), token_of_node_(1, -1) {
  for (size_t index = 0; index < tokens_.size(); ++index) {
    const std::string& content = tokens_[index].content;
    if (content.empty()) throw Error("added token " + std::to_string(tokens_[index].id) + " is empty");
    if (content.size() > kLongest)
      throw Error("added token " + std::to_string(tokens_[index].id) + " is longer than " + std::to_string(kLongest) + " bytes");
    first_byte_[static_cast<uint8_t>(content[0])] = true;
    uint64_t node = 0;
    for (const char byte : content) {
      const auto [next, fresh] = edges_.insert(edge(node, byte), token_of_node_.size());
      if (fresh) token_of_node_.push_back(-1);
      node = *next;
    }
    if (token_of_node_[node] >= 0) throw Error("the added token " + show(content) + " is stated twice");
    token_of_node_[node] = static_cast<int64_t>(index);
  }
}

int64_t AddedTokens::longest_at(std::string_view text, size_t at, size_t limit) const {
  int64_t best = -1;
  uint64_t node = 0;
  for (; at < limit; ++at) {
    node = edges_.find(edge(node, text[at]));
    if (node == FlatMap::kNone) break;
    if (token_of_node_[node] >= 0) best = token_of_node_[node];
  }
  return best;
}

bool AddedTokens::stands_alone(std::string_view text, size_t start, size_t end) const {
  if (start > 0 && starts_with_word(text.substr(last_char(text.substr(0, start))))) return false;
  return end == text.size() || !starts_with_word(text.substr(end));
}

void AddedTokens::take(Walk& walk, size_t start, size_t end, const TokenizerData::Added& token) const {
  if (token.single_word && !stands_alone(walk.text, start, end)) return;
  if (token.lstrip) start = std::max(start - trailing_white_space(walk.text.substr(0, start)), walk.done);
  if (token.rstrip) end += leading_white_space(walk.text.substr(end));
  if (walk.done < start) walk.out.push_back({walk.done, start});
  walk.out.push_back({start, end, token.id});
  walk.done = end;
}

void AddedTokens::scan(Walk& walk, size_t from, size_t to) const {
  for (size_t at = from; at < to;) {
    const int64_t found = first_byte_[static_cast<uint8_t>(walk.text[at])] ? longest_at(walk.text, at, to) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const TokenizerData::Added& token = tokens_[static_cast<size_t>(found)];
    const size_t end = at + token.content.size();
    if (token.special ? walk.specials : walk.others) take(walk, at, end, token);
    at = end;
  }
}

void AddedTokens::split(std::string_view text, bool specials, std::vector<Span>& out) const {
  Walk walk{text, specials, true, 0, out};
  scan(walk, 0, text.size());
  if (walk.done < text.size()) out.push_back({walk.done, text.size()});
}

void AddedTokens::split_windows(std::string_view text, std::span<const std::pair<size_t, size_t>> windows, std::vector<Span>& out) const {
  Walk walk{text, true, false, 0, out};
  for (const auto& [from, to] : windows) scan(walk, from, to);
  if (walk.done < text.size()) out.push_back({walk.done, text.size()});
}

}  // namespace tersor::text
