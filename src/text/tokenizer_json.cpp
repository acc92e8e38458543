// tokenizer.json of the `tokenizers` library, and what tokenizer_config.json adds to it.
#include <algorithm>

#include "tersor/base.h"
#include "tersor/text.h"
#include "text/end_tokens.h"
#include "text/json_node.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

using Step = TokenizerData::Step;

// How deep Sequence may hold Sequence.
constexpr int kDeepestSequence = 8;

constexpr std::string_view kSentencePiece = "SentencePiece tokenizers are not supported yet, only byte-level BPE is";

std::string named(const JsonNode& node, std::string_view what) {
  return "the " + std::string(what) + " " + show(node.at("type").string()) + " is not supported";
}

// ---- model

void put_token(TokenizerData& data, const std::string& token, int64_t id, const JsonNode& where) {
  auto& place = data.tokens[static_cast<size_t>(id)];
  if (!place.empty() && place != token)
    where.fail("the id " + std::to_string(id) + " belongs to " + show(place) + " and to " + show(token));
  place = token;
}

void take_vocabulary(const JsonNode& vocab, const std::optional<JsonNode>& added, TokenizerData& data) {
  const size_t count = vocab.object().size() + (added ? added->array_size() : 0);
  // Ids may have gaps, but a wild one must not decide how much is allocated.
  const int64_t highest = static_cast<int64_t>(2 * count + 65536);
  int64_t last = -1;
  for (const auto& [token, id] : vocab.value().items()) {
    if (token.empty()) vocab.fail("has an empty token");
    last = std::max(last, JsonNode(id, vocab.place() + "[" + show(token) + "]").integer(0, highest));
  }
  for (size_t i = 0; added && i < added->array_size(); ++i) last = std::max(last, added->item(i).at("id").integer(0, highest));
  data.tokens.resize(static_cast<size_t>(last + 1));
  for (const auto& [token, id] : vocab.value().items()) put_token(data, token, id.get<int64_t>(), vocab);
}

void take_merges(const JsonNode& merges, TokenizerData& data) {
  const size_t count = merges.array_size();
  data.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonNode merge = merges.item(i);
    if (merge.value().is_array()) {
      if (merge.array_size() != 2) merge.fail("is not two tokens");
      data.merges.emplace_back(merge.item(0).string(), merge.item(1).string());
    } else {
      const std::string& text = merge.string();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) merge.fail("is " + show(text) + ", not two tokens");
      data.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
    if (data.merges.back().first.empty() || data.merges.back().second.empty()) merge.fail("has an empty token");
  }
}

void check_model(const JsonNode& model) {
  const std::string type = model.string_or("type", model.find("merges") ? "BPE" : "unknown");
  if (type == "Unigram") model.fail("the model Unigram is a SentencePiece tokenizer; " + std::string(kSentencePiece));
  if (type != "BPE") model.fail("the model " + show(type) + " is not supported, only byte-level BPE is");
  if (model.boolean_or("byte_fallback", false))
    model.fail("BPE with byte_fallback is a SentencePiece tokenizer; " + std::string(kSentencePiece));
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(key, "").empty()) model.fail("BPE with " + std::string(key) + " is not supported");
  }
  if (const auto dropout = model.find("dropout"); dropout && (!dropout->value().is_number() || dropout->value().get<double>() != 0))
    dropout->fail("BPE with dropout is not supported");
}

void take_model(const JsonNode& model, const std::optional<JsonNode>& added, TokenizerData& data) {
  check_model(model);
  take_vocabulary(model.at("vocab"), added, data);
  take_merges(model.at("merges"), data);
  data.ignore_merges = model.boolean_or("ignore_merges", false);
  data.fuse_unk = model.boolean_or("fuse_unk", false);
  if (const auto unk = model.find("unk_token")) {
    const auto& vocab = model.at("vocab").value();
    const auto found = vocab.find(unk->string());
    if (found == vocab.end()) unk->fail("is " + show(unk->string()) + ", which is not in the vocabulary");
    data.unk = static_cast<int32_t>(found->get<int64_t>());
  }
}

void take_added(const JsonNode& added, TokenizerData& data) {
  for (size_t i = 0; i < added.array_size(); ++i) {
    const JsonNode token = added.item(i);
    const std::string& content = token.at("content").string();
    if (content.empty()) token.fail("has an empty content");
    const auto id = static_cast<int32_t>(token.at("id").integer(0, INT32_MAX));
    put_token(data, content, id, token);
    const bool special = token.boolean_or("special", false);
    data.added.push_back({.id = id,
                          .content = content,
                          .special = special,
                          .lstrip = token.boolean_or("lstrip", false),
                          .rstrip = token.boolean_or("rstrip", false),
                          .single_word = token.boolean_or("single_word", false),
                          .normalized = token.boolean_or("normalized", !special)});
  }
}

// ---- normalizer and pre-tokenizer

void take_normalizer(const JsonNode& node, TokenizerData& data, int depth = 0) {
  const std::string& type = node.at("type").string();
  if (type == "NFC") {
    data.nfc = true;
  } else if (type == "Sequence" && depth < kDeepestSequence) {
    const JsonNode all = node.at("normalizers");
    for (size_t i = 0; i < all.array_size(); ++i) take_normalizer(all.item(i), data, depth + 1);
  } else if (type == "Prepend" || type == "Replace" || type == "Precompiled") {
    node.fail(named(node, "normalizer") + "; " + std::string(kSentencePiece));
  } else {
    node.fail(named(node, "normalizer") + "; NFC is");
  }
}

Step split_step(const JsonNode& node) {
  Step step{.kind = Step::Kind::split_regex, .pattern = {}};
  const JsonNode pattern = node.at("pattern");
  if (const auto regex = pattern.find("Regex")) {
    step.pattern = regex->string();
  } else {
    step.kind = Step::Kind::split_string;
    step.pattern = pattern.at("String").string();
  }
  using Behaviour = Step::Behaviour;
  static constexpr std::pair<std::string_view, Behaviour> kNames[] = {{"Isolated", Behaviour::isolated},
                                                                      {"Removed", Behaviour::removed},
                                                                      {"MergedWithPrevious", Behaviour::merged_with_previous},
                                                                      {"MergedWithNext", Behaviour::merged_with_next},
                                                                      {"Contiguous", Behaviour::contiguous}};
  const JsonNode behaviour = node.at("behavior");
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& known) { return known.first == behaviour.string(); });
  if (found == std::end(kNames)) behaviour.fail("the behaviour " + show(behaviour.string()) + " is not known");
  step.behaviour = found->second;
  step.invert = node.boolean_or("invert", false);
  return step;
}

void take_pretokenizer(const JsonNode& node, TokenizerData& data, int depth = 0) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence" && depth < kDeepestSequence) {
    const JsonNode all = node.at("pretokenizers");
    for (size_t i = 0; i < all.array_size(); ++i) take_pretokenizer(all.item(i), data, depth + 1);
  } else if (type == "Split") {
    data.pretokenizer.push_back(split_step(node));
  } else if (type == "Digits") {
    data.pretokenizer.push_back({.kind = Step::Kind::digits, .pattern = {}, .individual = node.boolean_or("individual_digits", false)});
  } else if (type == "ByteLevel") {
    data.pretokenizer.push_back({.kind = Step::Kind::byte_level,
                                 .pattern = {},
                                 .use_regex = node.boolean_or("use_regex", true),
                                 .add_prefix_space = node.boolean_or("add_prefix_space", true)});
  } else if (type == "Metaspace") {
    node.fail(named(node, "pre-tokenizer") + "; " + std::string(kSentencePiece));
  } else {
    node.fail(named(node, "pre-tokenizer") + "; Split, Digits, ByteLevel and Sequence are");
  }
}

// ---- what comes before and after

std::optional<int32_t> added_id(const TokenizerData& data, std::string_view content) {
  for (const auto& token : data.added) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

// Whether the template puts a special token in front of the text, which then is bos.
void take_processor(const JsonNode& node, TokenizerData& data, int depth = 0) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence" && depth < kDeepestSequence) {
    const JsonNode all = node.at("processors");
    for (size_t i = 0; i < all.array_size(); ++i) take_processor(all.item(i), data, depth + 1);
  } else if (type == "TemplateProcessing") {
    const JsonNode single = node.at("single");
    const auto first = single.array_size() > 0 ? single.item(0).find("SpecialToken") : std::nullopt;
    if (!first) return;
    const std::string& content = first->at("id").string();
    data.bos = added_id(data, content);
    if (!data.bos) first->fail("the token " + show(content) + " is not an added token");
    data.add_bos = true;
  } else if (type != "ByteLevel") {
    node.fail(named(node, "post-processor") + "; TemplateProcessing, ByteLevel and Sequence are");
  }
}

void check_decoder(const JsonNode& node, int depth = 0) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence" && depth < kDeepestSequence) {
    const JsonNode all = node.at("decoders");
    for (size_t i = 0; i < all.array_size(); ++i) check_decoder(all.item(i), depth + 1);
  } else if (type != "ByteLevel") {
    const bool sentencepiece = type == "Metaspace" || type == "ByteFallback" || type == "Replace" || type == "Strip" || type == "Fuse";
    node.fail(named(node, "decoder") + "; " + (sentencepiece ? std::string(kSentencePiece) : "ByteLevel is"));
  }
}

// ---- tokenizer_config.json

// A token written as a string or as {"content": ...}.
std::optional<int32_t> config_token(const JsonNode& config, std::string_view key, const TokenizerData& data) {
  const auto node = config.find(key);
  if (!node) return std::nullopt;
  const std::string& content = node->value().is_object() ? node->at("content").string() : node->string();
  if (const auto id = added_id(data, content)) return id;
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), content);
  if (content.empty() || found == data.tokens.end()) node->fail("is " + show(content) + ", which is not in the vocabulary");
  return static_cast<int32_t>(found - data.tokens.begin());
}

std::string chat_template(const JsonNode& node) {
  if (!node.value().is_array()) return node.string();
  for (size_t i = 0; i < node.array_size(); ++i) {
    if (node.item(i).at("name").string() == "default") return node.item(i).at("template").string();
  }
  return {};
}

void take_config(const JsonNode& config, bool processor_decides, TokenizerData& data) {
  if (const auto bos = config_token(config, "bos_token", data)) data.bos = bos;
  data.eos = config_token(config, "eos_token", data);
  if (!processor_decides) data.add_bos = config.boolean_or("add_bos_token", false) && data.bos;
  if (const auto source = config.find("chat_template")) data.chat_template = chat_template(*source);
}

bool has_template(const JsonNode& processor) {
  const std::string& type = processor.at("type").string();
  if (type == "TemplateProcessing") return true;
  bool any = false;
  for (size_t i = 0; type == "Sequence" && i < processor.at("processors").array_size(); ++i)
    any = any || processor.at("processors").item(i).at("type").string() == "TemplateProcessing";
  return any;
}

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json, std::string_view place) {
  const nlohmann::json parsed = parse_json(tokenizer_json, place);
  const JsonNode root(parsed, std::string(place));
  TokenizerData data;
  const auto added = root.find("added_tokens");
  take_model(root.at("model"), added, data);
  if (added) take_added(*added, data);
  if (const auto node = root.find("normalizer")) take_normalizer(*node, data);
  if (const auto node = root.find("pre_tokenizer")) take_pretokenizer(*node, data);
  if (data.pretokenizer.empty() || data.pretokenizer.back().kind != Step::Kind::byte_level)
    root.fail("the pre-tokenizer does not end in ByteLevel; only byte-level BPE is supported");
  if (const auto node = root.find("decoder")) check_decoder(*node);
  const auto processor = root.find("post_processor");
  if (processor) take_processor(*processor, data);
  if (!tokenizer_config_json.empty()) {
    const std::string config_place = std::string(place) + " (tokenizer_config.json)";
    const nlohmann::json config = parse_json(tokenizer_config_json, config_place);
    take_config(JsonNode(config, config_place), processor && has_template(*processor), data);
  }
  collect_end_tokens(data);
  return data;
}

}  // namespace tersor::text
