// Tokenizers and chat formats. Knows nothing of models or MLX.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tersor/base.h"

namespace tersor::text {

/// What a byte-level BPE tokenizer is made of, whether it came from a GGUF or from tokenizer.json.
struct TokenizerData {
  std::vector<std::string> tokens;                 // by id, in the byte-level alphabet of GPT-2 for ordinary tokens; as written for special ones
  std::vector<std::pair<std::string, std::string>> merges;   // by rank
  struct Added { int32_t id; std::string content; bool special = true, lstrip = false, rstrip = false, single_word = false, normalized = false; };
  std::vector<Added> added;
  /// Pre-tokenizer: a chain of steps, applied in order. See text/pretokenizer.h.
  struct Step {
    enum class Kind { split_regex, digits, byte_level } kind = Kind::byte_level;
    std::string pattern;                           // split_regex: PCRE2 pattern; every match and every gap becomes a piece ("Isolated")
    bool individual = true;                        // digits: each digit alone
    bool use_regex = true, add_prefix_space = false;   // byte_level
  };
  std::vector<Step> pretokenizer;
  bool ignore_merges = false;                      // a piece that is a token as a whole is not split (Llama 3)
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> end_tokens;                 // every token that ends a reply: eos, eot, <|im_end|>
  bool add_bos = false;
  std::string chat_template;                       // Jinja source, only looked at to recognise the format
};

/// The pre-tokenizer steps of a GGUF `tokenizer.ggml.pre` name (gpt-2, smollm, llama-bpe, qwen2, ...). Throws Error that names the known ones.
std::vector<TokenizerData::Step> pretokenizer_by_name(std::string_view name);
/// From the text of tokenizer.json (and tokenizer_config.json, or empty). Throws Error naming what is not supported.
TokenizerData parse_tokenizer_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json, std::string_view place);

class Tokenizer {
 public:
  /// Throws Error when tokens, merges or patterns are inconsistent.
  explicit Tokenizer(TokenizerData data);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// `parse_special`: special tokens written out in the text become their ids (templates yes, user text no).
  /// Throws Error for invalid UTF-8, naming the byte. Does not add bos.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = false) const;
  /// Bytes of the ids; special tokens are left out unless `with_special`. Unknown ids throw Error.
  std::string decode(std::span<const int32_t> ids, bool with_special = false) const;
  std::string token_bytes(int32_t id) const;       // the raw bytes of one token
  bool is_special(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view content) const;   // of a token written as in the vocabulary
  int32_t size() const;
  const TokenizerData& data() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Text of a token stream, given out as soon as it is whole: never half a UTF-8 character. Bytes that can no longer become
/// valid are given out as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool with_special = false) : tokenizer_(&tokenizer), with_special_(with_special) {}
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool with_special_;
  std::string pending_;
};

struct Message { std::string role, content; };     // role: system, user, assistant

enum class ChatFormat { none, chatml, llama3, mistral, qwen };
std::string_view name_of(ChatFormat format);
/// Recognises the format from a template's source; `none` when it is empty or not one of ours.
ChatFormat recognise_chat(std::string_view chat_template);
/// The ids of a conversation, ready for the assistant's reply. Markup is parsed for special tokens, message contents are not.
/// The template's own default system line appears only where there is no system message.
/// `continuation`: messages follow on an earlier conversation whose last reply is already in the cache (no bos, no default system line;
/// closes that reply first where the format needs it).
std::vector<int32_t> apply_chat(const Tokenizer& tokenizer, ChatFormat format, std::span<const Message> messages, bool continuation = false);

}  // namespace tersor::text
