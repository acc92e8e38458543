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
  /// By id: ordinary tokens in the byte-level alphabet of GPT-2, added ones as written, "" for an id that nothing uses.
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  struct Added {
    int32_t id;
    std::string content;
    bool special = true, lstrip = false, rstrip = false, single_word = false, normalized = false;
  };
  std::vector<Added> added;
  bool nfc = false;  // text is brought to Unicode's normal form C first (Qwen2)
  /// Pre-tokenizer: a chain of steps, applied in order. See text/pretokenizer.h.
  struct Step {
    enum class Kind { split_regex, split_string, digits, byte_level } kind = Kind::byte_level;
    enum class Behaviour { isolated, removed, merged_with_previous, merged_with_next, contiguous };
    std::string pattern;                              // split_regex: a regular expression; split_string: the text itself
    Behaviour behaviour = Behaviour::isolated;        // split: what becomes of the matches
    bool invert = false;                              // split: the gaps are the matches
    bool individual = true;                           // digits: each digit alone
    bool use_regex = true, add_prefix_space = false;  // byte_level
  };
  std::vector<Step> pretokenizer;
  bool ignore_merges = false;  // a piece that is a token as a whole is not split (Llama 3)
  std::optional<int32_t> unk;  // stands for a byte that has no token; without it such bytes are left out
  bool fuse_unk = false;       // neighbouring unknown bytes make one unk
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> end_tokens;  // every token that ends a reply: eos, eot, <|im_end|>
  bool add_bos = false;
  /// Jinja source, never run: looked at for the chat format and its details. The caller puts a separate chat_template.jinja here too.
  std::string chat_template;
};

/// The pre-tokenizer steps of a GGUF `tokenizer.ggml.pre` name (gpt-2, smollm, llama-bpe, qwen2, ...). Throws Error that
/// names the known ones.
std::vector<TokenizerData::Step> pretokenizer_by_name(std::string_view name);
/// From the text of tokenizer.json (and tokenizer_config.json, or empty). Throws Error naming what is not supported.
TokenizerData parse_tokenizer_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json, std::string_view place);

/// The tokenizer's part of a GGUF's metadata, under the names of its keys (tokenizer.ggml.*, tokenizer.chat_template).
struct GgufTokenizer {
  std::string model, pre;  // "gpt2", "smollm"
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> token_type;  // empty: all ordinary
  std::optional<int64_t> bos_token_id, eos_token_id, eot_token_id;
  std::optional<bool> add_bos_token;
  std::string chat_template;
};
/// As llama.cpp reads it: a byte without a token is left out. Throws Error, starting with `place`, for what is not supported or
/// inconsistent.
TokenizerData tokenizer_from_gguf(GgufTokenizer gguf, std::string_view place);

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
  /// The ids of all parts as one text, special tokens being recognised only inside parts that are markup, never across their edges.
  struct Part {
    std::string text;
    bool markup = false;
  };
  std::vector<int32_t> encode_parts(std::span<const Part> parts) const;
  /// Bytes of the ids; special tokens are left out unless `with_special`. Unknown ids throw Error.
  std::string decode(std::span<const int32_t> ids, bool with_special = false) const;
  std::string token_bytes(int32_t id) const;  // the raw bytes of one token
  bool is_special(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view content) const;  // of a token written as in the vocabulary
  int32_t size() const;
  const TokenizerData& data() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same text with each maximal ill-formed part replaced by U+FFFD, as the Unicode standard recommends.
std::string replace_invalid_utf8(std::string_view bytes);

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

struct Message {
  std::string role, content;
};  // role: system, user, assistant

enum class ChatFormat { none, chatml, llama3, mistral, qwen };
std::string_view name_of(ChatFormat format);
/// Recognises the format from a template's source; `none` when it is empty or not one of ours.
ChatFormat recognise_chat(std::string_view chat_template);
/// The ids of a conversation, ready for the assistant's reply. Markup is parsed for special tokens, message contents are not.
/// The template's own default system line appears only where there is no system message.
/// Starts with bos where the template writes it. Throws Error for unknown roles, orders that the format refuses, and tokenizers that lack
/// its tokens. `continuation`: messages follow on an earlier conversation whose last reply is already in the cache without the token that
/// ended it (no bos, no default system line; closes that reply first).
std::vector<int32_t> apply_chat(const Tokenizer& tokenizer, ChatFormat format, std::span<const Message> messages,
                                bool continuation = false);

}  // namespace tersor::text
