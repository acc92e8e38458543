#include "model/hf_json.h"

#include <cmath>

#include "base/sniff.h"

namespace tersor::model::hf {

using Json = nlohmann::json;

std::string read_limited(const std::filesystem::path& path, uint64_t limit) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) throw Error(path.string() + ": is missing; the folder of a model must hold it");
  if (!std::filesystem::is_regular_file(path, code)) throw Error(path.string() + ": is not a regular file");
  if (const auto size = std::filesystem::file_size(path, code); code || size > limit)
    throw Error(path.string() + ": has " + std::to_string(size) + " bytes; at most " + std::to_string(limit) +
                " are expected of such a file");
  return read_file(path);
}

Section Section::read(const std::filesystem::path& path, uint64_t limit) {
  const std::string text = read_limited(path, limit);
  std::shared_ptr<const Json> root;
  try {
    root = std::make_shared<const Json>(Json::parse(text));
  } catch (const Json::parse_error& error) {
    throw Error(path.string() + ": is not valid JSON: error at byte " + std::to_string(error.byte) + " of " + std::to_string(text.size()) +
                "; it looks like " + describe_content(std::as_bytes(std::span(text))));
  }
  if (!root->is_object()) throw Error(path.string() + ": holds JSON, but not an object");
  const Json* json = root.get();
  return Section(std::move(root), json, path.string(), "");
}

void Section::fail(const std::string& text) const { throw Error(place_ + ": " + text); }

void Section::fail_key(const std::string& key, const std::string& wanted) const {
  if (!has(key)) fail("key " + in_quotes(prefix_ + key) + " is missing; " + wanted + " is needed");
  fail("key " + in_quotes(prefix_ + key) + " is " + printable(value(key).dump(-1, ' ', true, Json::error_handler_t::replace)) + "; " +
       wanted + " is needed");
}

const Json& Section::value(const std::string& key) const {
  static const Json null;
  const auto found = json_->find(key);
  return found == json_->end() ? null : *found;
}

bool Section::has(const std::string& key) const { return !value(key).is_null(); }

int Section::size(const std::string& key, std::optional<int> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const Json& found = value(key);
  if (!found.is_number_unsigned() || found.get<uint64_t>() < 1 || found.get<uint64_t>() > INT32_MAX)
    fail_key(key, "a whole number from 1 to 2^31 - 1");
  return found.get<int>();
}

float Section::number(const std::string& key, std::optional<float> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const Json& found = value(key);
  if (!found.is_number() || !std::isfinite(found.get<float>())) fail_key(key, "a number");
  return found.get<float>();
}

bool Section::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!value(key).is_boolean()) fail_key(key, "true or false");
  return value(key).get<bool>();
}

std::string Section::string(const std::string& key, std::optional<std::string> fallback) const {
  if (!has(key) && fallback) return *fallback;
  if (!value(key).is_string()) fail_key(key, "a string");
  return value(key).get<std::string>();
}

std::optional<Section> Section::section(const std::string& key) const {
  if (!has(key)) return {};
  if (!value(key).is_object()) fail_key(key, "an object");
  return Section(root_, &value(key), place_, prefix_ + key + ".");
}

}  // namespace tersor::model::hf
