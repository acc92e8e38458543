#include "model/hf_tokenizer.h"

#include "model/weight_plan.h"

namespace tersor::model::hf {
namespace {

constexpr uint64_t kMaxTokenizer = uint64_t{256} << 20, kMaxSmall = uint64_t{16} << 20;

std::string read_if_there(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::exists(path, code) ? read_limited(path, kMaxSmall) : std::string();
}

// An id, or a list of them.
std::vector<int32_t> token_ids(const Section& json, const std::string& key, int vocab) {
  std::vector<int32_t> result;
  const auto add = [&](const nlohmann::json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab)
      json.fail_key(key, "a token id below " + std::to_string(vocab) + ", or a list of them");
    result.push_back(id.get<int32_t>());
  };
  if (!json.has(key)) return result;
  if (json.value(key).is_array())
    for (const auto& id : json.value(key)) add(id);
  else
    add(json.value(key));
  return result;
}

}  // namespace

text::TokenizerData read_folder_tokenizer(const std::filesystem::path& folder, const Section& config, int vocab) {
  const auto place = folder / "tokenizer.json";
  std::error_code code;
  if (!std::filesystem::exists(place, code) && std::filesystem::exists(folder / "tokenizer.model", code))
    throw Error(place.string() + ": is missing; tokenizer.model (SentencePiece) is not supported");
  const std::string text = read_limited(place, kMaxTokenizer);
  auto tokenizer = text::parse_tokenizer_json(text, read_if_there(folder / "tokenizer_config.json"), place.string());
  if (auto chat = read_if_there(folder / "chat_template.jinja"); !chat.empty()) tokenizer.chat_template = std::move(chat);
  auto ends = token_ids(config, "eos_token_id", vocab);
  if (const auto generation = folder / "generation_config.json"; std::filesystem::exists(generation, code))
    for (const auto id : token_ids(Section::read(generation, kMaxSmall), "eos_token_id", vocab)) ends.push_back(id);
  if (!tokenizer.eos && !ends.empty()) tokenizer.eos = ends.front();
  if (const auto bos = token_ids(config, "bos_token_id", vocab); !tokenizer.bos && !bos.empty()) tokenizer.bos = bos.front();
  add_end_tokens(tokenizer, ends);
  return tokenizer;
}

}  // namespace tersor::model::hf
