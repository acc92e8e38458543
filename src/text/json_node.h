// Reading JSON that is not trusted: every access says what was expected, and where, when it fails.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tersor::text {

/// Parses a text. Throws Error, starting with `place`, for what is no JSON, nests deeper than 64, or states a key twice.
nlohmann::json parse_json(std::string_view text, std::string_view place);

/// A value and the way to it. Every method throws Error naming both when the value is not of the wanted kind.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& place() const { return place_; }

  JsonNode at(std::string_view key) const;                   // a member that must be there
  std::optional<JsonNode> find(std::string_view key) const;  // none when absent or null
  JsonNode item(size_t index) const;                         // of an array
  size_t array_size() const;
  const nlohmann::json& object() const;
  const std::string& string() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;

  std::string string_or(std::string_view key, std::string_view otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  [[noreturn]] void fail(std::string_view what) const;  // "place: what"

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace tersor::text
