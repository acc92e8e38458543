#include "text/json_node.h"

#include <unordered_set>
#include <vector>

#include "tersor/base.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

using nlohmann::json;

constexpr int kDeepest = 64;

// Before anything is built: brackets outside of strings.
void check_depth(std::string_view text, std::string_view place) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepest)
        throw Error(std::string(place) + ": nests deeper than " + std::to_string(kDeepest) + " levels at byte " + std::to_string(i));
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

}  // namespace

json parse_json(std::string_view text, std::string_view place) {
  check_depth(text, place);
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) throw Error(std::string(place) + ": the key " + show(key) + " is stated twice in one object");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    throw Error(std::string(place) + ": is not valid JSON at byte " + std::to_string(error.byte) + "; the file may be incomplete");
  } catch (const json::exception&) { throw Error(std::string(place) + ": is not JSON that can be read (a number is out of range)"); }
}

void JsonNode::fail(std::string_view what) const { throw Error(place_ + ": " + std::string(what)); }

const json& JsonNode::object() const {
  if (!value_->is_object()) fail("is not an object");
  return *value_;
}

JsonNode JsonNode::at(std::string_view key) const {
  const auto& members = object();
  const auto found = members.find(key);
  if (found == members.end()) fail("has no " + show(key));
  return {*found, place_ + "." + std::string(key)};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const auto& members = object();
  const auto found = members.find(key);
  if (found == members.end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, place_ + "." + std::string(key));
}

size_t JsonNode::array_size() const {
  if (!value_->is_array()) fail("is not a list");
  return value_->size();
}

JsonNode JsonNode::item(size_t index) const {
  if (index >= array_size()) fail("has no item " + std::to_string(index));
  return {(*value_)[index], place_ + "[" + std::to_string(index) + "]"};
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) fail("is not a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) fail("is neither true nor false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) fail("is not a whole number");
  const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = huge ? INT64_MAX : value_->get<int64_t>();
  if (huge || number < low || number > high)
    fail("is " + value_->dump() + ", outside " + std::to_string(low) + " to " + std::to_string(high));
  return number;
}

std::string JsonNode::string_or(std::string_view key, std::string_view otherwise) const {
  const auto found = find(key);
  return found ? found->string() : std::string(otherwise);
}

bool JsonNode::boolean_or(std::string_view key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->boolean() : otherwise;
}

}  // namespace tersor::text
