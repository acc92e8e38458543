// A small valid tokenizer.json for the tests: all bytes, a few merges, special and added tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tersor/text.h"
#include "text/byte_level.h"

namespace tersor::text {

inline nlohmann::json small_json() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_level_char(static_cast<uint8_t>(byte))] = byte;
  nlohmann::json merges = nlohmann::json::array();
  int next = 256;
  for (const auto& [left, right] :
       {std::pair{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"\u0120", "w"}, {"a", "a"}, {"aa", "aa"}}) {
    vocab[std::string(left) + right] = next++;
    merges.push_back(std::string(left) + " " + right);
  }
  const auto added = [&](const char* content, bool special) {
    return nlohmann::json{{"id", next++},    {"content", content},   {"special", special}, {"lstrip", false},
                          {"rstrip", false}, {"single_word", false}, {"normalized", false}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {added("<|im_start|>", true), added("<|im_end|>", true), added("<tool>", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", R"(\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+)"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}}},
          {"post_processor", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

inline Tokenizer small_tokenizer() {
  const std::string chat_template =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
      "{{ '<|im_start|>system\\nhello<|im_end|>\\n' }}{% endif %}"
      "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
      "{{ '<|im_start|>assistant\\n' }}";
  const nlohmann::json config = {
      {"bos_token", nullptr}, {"eos_token", "<|im_end|>"}, {"add_bos_token", false}, {"chat_template", chat_template}};
  return Tokenizer(parse_tokenizer_json(small_json().dump(), config.dump(), "tokenizer.json"));
}

/// what() of the Error that `action` throws; a failure text when it throws none.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) { return error.what(); }
  return "(no error)";
}

}  // namespace tersor::text
