#include "model/unused_tensors.h"

#include <charconv>

#include "base/sniff.h"

namespace tersor::model {

std::optional<int> layer_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return {};
  const std::string_view rest = name.substr(prefix.size());
  int layer = 0;
  const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const bool whole = code == std::errc() && end != rest.data() + rest.size() && *end == '.' && layer >= 0;
  return whole ? std::optional(layer) : std::nullopt;
}

std::string why_unused(std::optional<int> layer, int layers, const std::string& key, const std::string& otherwise) {
  if (!layer || *layer < layers) return otherwise;
  return " belongs to layer " + std::to_string(*layer) + ", but " + key + " is " + std::to_string(layers) +
         ", which would leave it out; correct one of them";
}

std::string unused_text(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamed; ++i) text += (i ? ", " : "") + printable(names[i]);
  if (names.empty()) return text;
  return std::to_string(names.size()) + (names.size() == 1 ? " tensor that changes" : " tensors that change") + " nothing: " + text +
         (names.size() > kNamed ? ", ..." : "");
}

}  // namespace tersor::model
