// Typed look-ups in the JSON files of a model folder. Every error names the file and the key.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tersor/base.h"

namespace tersor::model::hf {

/// An object of a JSON file: the file itself, or one of its sections. A null value counts as missing.
class Section {
 public:
  /// Throws Error when the file cannot be read, is larger than `limit` bytes or is not a JSON object.
  static Section read(const std::filesystem::path& path, uint64_t limit);

  bool has(const std::string& key) const;
  /// 1 to 2^31 - 1.
  int size(const std::string& key, std::optional<int> fallback = {}) const;
  float number(const std::string& key, std::optional<float> fallback = {}) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string string(const std::string& key, std::optional<std::string> fallback = {}) const;
  /// Empty when missing; Error when it is not an object.
  std::optional<Section> section(const std::string& key) const;
  /// The value, or null.
  const nlohmann::json& value(const std::string& key) const;
  const nlohmann::json& all() const { return *json_; }

  /// Throws Error: "FILE: TEXT".
  [[noreturn]] void fail(const std::string& text) const;
  /// "FILE: key "KEY" is VALUE; WANTED is needed"
  [[noreturn]] void fail_key(const std::string& key, const std::string& wanted) const;

 private:
  Section(std::shared_ptr<const nlohmann::json> root, const nlohmann::json* json, std::string place, std::string prefix)
      : root_(std::move(root)), json_(json), place_(std::move(place)), prefix_(std::move(prefix)) {}

  std::shared_ptr<const nlohmann::json> root_;
  const nlohmann::json* json_;  // inside root_
  std::string place_, prefix_;  // the file; "rope_scaling." inside a section
};

/// Reads a text file of at most `limit` bytes.
std::string read_limited(const std::filesystem::path& path, uint64_t limit);

}  // namespace tersor::model::hf
