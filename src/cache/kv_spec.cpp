#include <charconv>

#include "tersor/cache.h"

namespace tersor::cache {
namespace {

constexpr int kMaxTokens = 1 << 24;

int parse_int(std::string_view text, std::string_view key, int low, int high, std::string_view whole) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size() || value < low || value > high)
    throw Error("cache setting \"" + std::string(whole) + "\": " + std::string(key) + "=" + std::string(text) +
                " is not a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

std::vector<int> parse_layers(std::string_view text, std::string_view whole) {
  std::vector<int> layers;
  while (true) {
    const size_t plus = std::min(text.find('+'), text.size());
    layers.push_back(parse_int(text.substr(0, plus), "skip", -100000, 100000, whole));
    if (plus == text.size()) return layers;
    text.remove_prefix(plus + 1);
  }
}

// One string taken apart: the codec's own text, and the options that are the cache's.
struct Parsed {
  codec::Spec codec;
  std::optional<int> window, sinks;
  std::optional<std::vector<int>> skip;
};

Parsed parse_one(std::string_view text) {
  Parsed parsed;
  std::string codec_text;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const auto value_of = [&](std::string_view key) -> std::optional<std::string_view> {
      if (part.size() <= key.size() || part.substr(0, key.size()) != key || part[key.size()] != '=') return std::nullopt;
      return part.substr(key.size() + 1);
    };
    const auto once = [&](bool stated, const char* key) {
      if (stated) throw Error("cache setting \"" + std::string(text) + "\": " + key + "= is stated twice");
    };
    if (const auto window = value_of("window")) {
      once(parsed.window.has_value(), "window");
      parsed.window = parse_int(*window, "window", 0, kMaxTokens, text);
    } else if (const auto sinks = value_of("sinks")) {
      once(parsed.sinks.has_value(), "sinks");
      parsed.sinks = parse_int(*sinks, "sinks", 0, kMaxTokens, text);
    } else if (const auto skip = value_of("skip")) {
      once(parsed.skip.has_value(), "skip");
      parsed.skip = parse_layers(*skip, text);
    } else {
      codec_text += (at == 0 ? "" : ",") + std::string(part);
    }
    at = end + 1;
  }
  parsed.codec = codec::Spec::parse(codec_text);
  return parsed;
}

// The one value that two strings state, or neither's.
template <class T>
T merged(const std::optional<T>& keys, const std::optional<T>& values, const char* name, T otherwise) {
  if (keys && values && *keys != *values)
    throw Error(std::string("keys and values ask for different ") + name + " settings; state it once, or alike for both");
  return keys ? *keys : values ? *values : otherwise;
}

}  // namespace

KvSpec KvSpec::parse(std::string_view text) {
  const Parsed one = parse_one(text);
  KvSpec spec{one.codec, one.codec, one.window.value_or(0), one.sinks.value_or(0), one.skip.value_or(std::vector<int>())};
  spec.values.centre = 0;  // softmax sees the mean of values
  return spec;
}

KvSpec KvSpec::parse(std::string_view keys, std::string_view values) {
  const Parsed k = parse_one(keys), v = parse_one(values);
  KvSpec spec;
  spec.keys = k.codec, spec.values = v.codec;
  spec.window = merged(k.window, v.window, "window", 0);
  spec.sinks = merged(k.sinks, v.sinks, "sinks", 0);
  spec.skip = merged(k.skip, v.skip, "skip", {});
  return spec;
}

bool needs_calibration(const codec::Spec& spec, codec::Role role) {
  return codec::needs_calibration(spec) || (role == codec::Role::keys && spec.centre == codec::Spec::kCentreCalibrated);
}

bool KvSpec::calibrated() const { return needs_calibration(keys, codec::Role::keys) || needs_calibration(values, codec::Role::values); }

bool KvSpec::reads(const KvSpec& saved) const {
  KvSpec same = *this;
  same.keys.stages = saved.keys.stages, same.values.stages = saved.values.stages;
  return same.str() == saved.str();
}

KvSpec KvSpec::recommended() { return parse("turboquant:6,centre=256,window=64,sinks=4", "turboquant:4"); }

std::string KvSpec::str() const {
  std::string text = keys.str();
  if (!(values == keys)) text = "keys " + keys.str() + " values " + values.str();
  if (window) text += ",window=" + std::to_string(window);
  if (sinks) text += ",sinks=" + std::to_string(sinks);
  for (size_t i = 0; i < skip.size(); ++i) text += (i ? "+" : ",skip=") + std::to_string(skip[i]);
  return text;
}

}  // namespace tersor::cache
