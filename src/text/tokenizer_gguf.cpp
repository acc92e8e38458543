#include <algorithm>

#include "tersor/base.h"
#include "tersor/text.h"
#include "text/end_tokens.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

// Values of tokenizer.ggml.token_type.
enum : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// llama.cpp's rule for these pre-tokenizers: a piece that is a token as a whole is taken as it is.
bool ignores_merges(std::string_view pre) {
  constexpr std::string_view kNames[] = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"};
  return std::find(std::begin(kNames), std::end(kNames), pre) != std::end(kNames);
}

std::optional<int32_t> checked_id(std::optional<int64_t> id, size_t count, std::string_view place, std::string_view key) {
  if (!id) return std::nullopt;
  if (*id < 0 || static_cast<uint64_t>(*id) >= count)
    throw Error(std::string(place) + ": tokenizer.ggml." + std::string(key) + " is " + std::to_string(*id) +
                ", outside the vocabulary of " + std::to_string(count));
  return static_cast<int32_t>(*id);
}

void take_merges(const std::vector<std::string>& merges, std::string_view place, TokenizerData& data) {
  data.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    // The alphabet has no space, so that the first one after the first character separates.
    const size_t space = merges[rank].find(' ', 1);
    if (merges[rank].empty() || space == std::string::npos || space + 1 == merges[rank].size())
      throw Error(std::string(place) + ": tokenizer.ggml.merges[" + std::to_string(rank) + "] is " + show(merges[rank]) +
                  ", not two tokens");
    data.merges.emplace_back(merges[rank].substr(0, space), merges[rank].substr(space + 1));
  }
}

void take_types(const std::vector<int32_t>& types, std::string_view place, TokenizerData& data) {
  if (types.empty()) return;
  if (types.size() != data.tokens.size())
    throw Error(std::string(place) + ": tokenizer.ggml.token_type has " + std::to_string(types.size()) + " entries for " +
                std::to_string(data.tokens.size()) + " tokens");
  for (size_t id = 0; id < types.size(); ++id) {
    const int32_t type = types[id];
    if (type < 0 || type > kByte)
      throw Error(std::string(place) + ": tokenizer.ggml.token_type[" + std::to_string(id) + "] is " + std::to_string(type) +
                  ", which is no type");
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    if (data.tokens[id].empty()) continue;
    data.added.push_back({.id = static_cast<int32_t>(id), .content = data.tokens[id], .special = type != kUserDefined});
  }
}

}  // namespace

TokenizerData tokenizer_from_gguf(GgufTokenizer gguf, std::string_view place) {
  if (gguf.model != "gpt2") {
    const bool sentencepiece = gguf.model == "llama" || gguf.model == "t5";
    throw Error(std::string(place) + ": tokenizer.ggml.model is " + show(gguf.model) + "; " +
                (sentencepiece ? "SentencePiece tokenizers are not supported yet, only" : "only") + " byte-level BPE (gpt2) is supported");
  }
  if (gguf.tokens.empty()) throw Error(std::string(place) + ": tokenizer.ggml.tokens is missing or empty");
  TokenizerData data;
  try {
    data.pretokenizer = pretokenizer_by_name(gguf.pre);
  } catch (const Error& error) { throw Error(std::string(place) + ": tokenizer.ggml.pre: " + error.what()); }
  data.ignore_merges = ignores_merges(gguf.pre);
  data.nfc = false;  // GGUF does not say, and llama.cpp does not normalise
  data.tokens = std::move(gguf.tokens);
  take_merges(gguf.merges, place, data);
  take_types(gguf.token_type, place, data);
  data.bos = checked_id(gguf.bos_token_id, data.tokens.size(), place, "bos_token_id");
  data.eos = checked_id(gguf.eos_token_id, data.tokens.size(), place, "eos_token_id");
  data.add_bos = data.bos && gguf.add_bos_token.value_or(data.ignore_merges);
  data.chat_template = std::move(gguf.chat_template);
  collect_end_tokens(data, checked_id(gguf.eot_token_id, data.tokens.size(), place, "eot_token_id"));
  return data;
}

}  // namespace tersor::text
