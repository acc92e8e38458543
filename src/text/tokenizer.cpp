#include <algorithm>
#include <unordered_map>

#include "tersor/base.h"
#include "tersor/text.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

// Pieces remembered within one call, and the longest one worth it: words repeat, long pieces do not.
constexpr size_t kMostCached = 1 << 16, kLongestCached = 48;

using Window = std::pair<size_t, size_t>;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

}  // namespace

struct Tokenizer::Impl {
  TokenizerData data;
  std::unordered_map<std::string_view, int32_t> ids;  // of all tokens
  std::vector<int8_t> kind;                           // by id: 0 ordinary, 1 added, 2 special
  AddedTokens as_written, normalized;                 // found before, and after, the text is normalised
  AddedTokens markup;                                 // all special ones, for templates
  Pretokenizer pretokenizer;
  std::unique_ptr<Bpe> bpe;

  explicit Impl(TokenizerData from);
  void take_added();
  void take_vocabulary();
  void check_id(std::optional<int32_t> id, const char* what) const;

  std::optional<int32_t> id_of(std::string_view token) const {
    const auto found = ids.find(token);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }

  /// One call of encode: what it needs and what it has found.
  struct Call {
    Pretokenizer::Scratch pieces;
    Bpe::Scratch bpe;
    std::unordered_map<std::string, std::pair<uint32_t, uint32_t>, StringHash, std::equal_to<>> cache;  // piece -> range of cached_ids
    std::vector<int32_t> cached_ids, out;
  };
  void encode_piece(std::string_view piece, Call& call) const;
  void encode_run(std::string_view text, bool specials, Call& call) const;
  void encode_unmarked(std::string_view text, bool specials, Call& call) const;
};

Tokenizer::Impl::Impl(TokenizerData from) : data(std::move(from)), pretokenizer(data.pretokenizer) {
  if (data.tokens.empty()) throw Error("the tokenizer has no tokens");
  if (data.tokens.size() > static_cast<size_t>(INT32_MAX)) throw Error("the tokenizer has too many tokens");
  if (data.pretokenizer.empty() || data.pretokenizer.back().kind != TokenizerData::Step::Kind::byte_level)
    throw Error("the tokenizer is not byte-level (its pre-tokenizer has no ByteLevel step), which is not supported");
  take_added();
  take_vocabulary();
  check_id(data.unk, "unk");
  check_id(data.bos, "bos");
  check_id(data.eos, "eos");
  for (const int32_t id : data.end_tokens) check_id(id, "end");
  bpe = std::make_unique<Bpe>(data, [this](std::string_view token) { return id_of(token); });
}

void Tokenizer::Impl::check_id(std::optional<int32_t> id, const char* what) const {
  if (id && (*id < 0 || static_cast<size_t>(*id) >= data.tokens.size()))
    throw Error(std::string("the ") + what + " token's id " + std::to_string(*id) + " is outside the vocabulary of " +
                std::to_string(data.tokens.size()));
}

void Tokenizer::Impl::take_added() {
  kind.assign(data.tokens.size(), 0);
  std::vector<TokenizerData::Added> first, second, special;
  for (const auto& token : data.added) {
    check_id(token.id, "added");
    if (data.tokens[static_cast<size_t>(token.id)] != token.content)
      throw Error("added token " + show(token.content) + " has the id " + std::to_string(token.id) + " of the token " +
                  show(data.tokens[static_cast<size_t>(token.id)]));
    if (kind[static_cast<size_t>(token.id)] != 0) throw Error("added token " + show(token.content) + " is stated twice");
    if (const size_t bad = find_invalid_utf8(token.content); bad != std::string::npos)
      throw Error("added token " + std::to_string(token.id) + " is not valid UTF-8");
    kind[static_cast<size_t>(token.id)] = token.special ? 2 : 1;
    if (token.special) special.push_back(token);
    (token.normalized ? second : first).push_back(token);
    if (token.normalized && data.nfc) second.back().content = to_nfc(token.content);
  }
  as_written = AddedTokens(first);
  normalized = AddedTokens(second);
  markup = AddedTokens(special);
}

void Tokenizer::Impl::take_vocabulary() {
  ids.reserve(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string& token = data.tokens[id];
    if (token.empty()) continue;  // an id that nothing uses
    const auto [place, fresh] = ids.emplace(token, static_cast<int32_t>(id));
    if (!fresh) throw Error("the token " + show(token) + " has two ids, " + std::to_string(place->second) + " and " + std::to_string(id));
  }
}

void Tokenizer::Impl::encode_piece(std::string_view piece, Call& call) const {
  const bool cacheable = piece.size() <= kLongestCached;
  if (cacheable) {
    if (const auto found = call.cache.find(piece); found != call.cache.end()) {
      const auto begin = call.cached_ids.begin() + found->second.first;
      call.out.insert(call.out.end(), begin, begin + found->second.second);
      return;
    }
  }
  const size_t before = call.out.size();
  std::optional<int32_t> whole;
  if (data.ignore_merges) whole = id_of(byte_level_encode(piece));
  if (whole && kind[static_cast<size_t>(*whole)] == 0)
    call.out.push_back(*whole);
  else
    bpe->encode(piece, call.bpe, call.out);
  if (!cacheable || call.cache.size() >= kMostCached) return;
  const auto start = static_cast<uint32_t>(call.cached_ids.size());
  call.cached_ids.insert(call.cached_ids.end(), call.out.begin() + static_cast<std::ptrdiff_t>(before), call.out.end());
  call.cache.emplace(std::string(piece), std::pair{start, static_cast<uint32_t>(call.out.size() - before)});
}

// A run between tokens that were found as written.
void Tokenizer::Impl::encode_run(std::string_view text, bool specials, Call& call) const {
  std::string changed;
  if (data.nfc) text = changed = to_nfc(text);
  std::vector<Span> spans;
  if (normalized.empty())
    spans.push_back({0, text.size()});
  else
    normalized.split(text, specials, spans);
  for (const Span& span : spans) {
    if (span.id >= 0) {
      call.out.push_back(span.id);
      continue;
    }
    pretokenizer.split(text.substr(span.start, span.end - span.start), call.pieces);
    for (const std::string_view piece : call.pieces.pieces) encode_piece(piece, call);
  }
}

void Tokenizer::Impl::encode_unmarked(std::string_view text, bool specials, Call& call) const {
  if (text.empty()) return;
  std::vector<Span> spans;
  as_written.split(text, specials, spans);
  for (const Span& span : spans) {
    if (span.id >= 0)
      call.out.push_back(span.id);
    else
      encode_run(text.substr(span.start, span.end - span.start), specials, call);
  }
}

Tokenizer::Tokenizer(TokenizerData data) : impl_(std::make_unique<Impl>(std::move(data))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    throw Error("the text is not valid UTF-8 at byte " + std::to_string(bad) + "; convert it to UTF-8 first");
  Impl::Call call;
  impl_->encode_unmarked(text, parse_special, call);
  return std::move(call.out);
}

std::vector<int32_t> Tokenizer::encode_parts(std::span<const Part> parts) const {
  std::string text;
  std::vector<Window> windows;
  for (const Part& part : parts) {
    if (part.markup) windows.emplace_back(text.size(), text.size() + part.text.size());
    text += part.text;
  }
  if (const size_t bad = find_invalid_utf8(text); bad != std::string::npos)
    throw Error("the conversation is not valid UTF-8 at byte " + std::to_string(bad) + " of its text; convert it to UTF-8 first");
  Impl::Call call;
  std::vector<Span> spans;
  if (!text.empty()) impl_->markup.split_windows(text, windows, spans);
  for (const Span& span : spans) {
    if (span.id >= 0)
      call.out.push_back(span.id);
    else
      impl_->encode_unmarked(std::string_view(text).substr(span.start, span.end - span.start), false, call);
  }
  return std::move(call.out);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= size()) throw Error("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(size()));
  const std::string& token = impl_->data.tokens[static_cast<size_t>(id)];
  return impl_->kind[static_cast<size_t>(id)] != 0 ? token : byte_level_decode(token);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_special) const {
  std::string out;
  for (const int32_t id : ids) {
    std::string bytes = token_bytes(id);
    if (with_special || !is_special(id)) out += bytes;
  }
  return out;
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < size() && impl_->kind[static_cast<size_t>(id)] == 2; }

std::optional<int32_t> Tokenizer::id_of(std::string_view content) const { return impl_->id_of(content); }

int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->data.tokens.size()); }
const TokenizerData& Tokenizer::data() const { return impl_->data; }

}  // namespace tersor::text
