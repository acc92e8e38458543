#include <algorithm>
#include <array>
#include <charconv>

#include "tersor/codec.h"

namespace tersor::codec {
namespace {

constexpr std::array kAffineBits = {2, 3, 4, 5, 6, 8};
constexpr std::array kAffineGroups = {32, 64, 128};
constexpr int kTurboMaxBits = 6;

[[noreturn]] void fail(std::string_view text, const std::string& why) {
  throw Error("codec \"" + std::string(text) + "\": " + why + "; known codecs: " + known_codecs());
}

template <class T>
T parse_number(std::string_view text, std::string_view whole, std::string_view what) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size())
    fail(whole, std::string(what) + " \"" + std::string(text) + "\" is not a number");
  return value;
}

Family parse_family(std::string_view name, std::string_view whole) {
  for (const Family family : {Family::full, Family::affine, Family::turboquant})
    if (name == name_of(family)) return family;
  fail(whole, "there is no codec of that name");
}

void parse_parameter(Spec& spec, std::string_view parameter, bool present, std::string_view whole) {
  if (spec.family == Family::full) {
    if (!present) return;
    spec.dtype = parse_dtype(parameter);
    spec.bits = static_cast<int>(8 * size_of(*spec.dtype));
    return;
  }
  if (!present) fail(whole, "the number of bits is missing, as in " + std::string(name_of(spec.family)) + ":4");
  spec.bits = parse_number<int>(parameter, whole, "the number of bits");
  const bool fits = spec.family == Family::affine ? std::count(kAffineBits.begin(), kAffineBits.end(), spec.bits) > 0
                                                  : spec.bits >= 1 && spec.bits <= kTurboMaxBits;
  if (!fits) fail(whole, std::to_string(spec.bits) + " bits are not possible here");
}

void parse_option(Spec& spec, std::string_view key, std::string_view value, std::string_view whole) {
  if (spec.family == Family::affine && key == "group") {
    spec.group = parse_number<int>(value, whole, "group");
    if (std::count(kAffineGroups.begin(), kAffineGroups.end(), spec.group) == 0) fail(whole, "group must be 32, 64 or 128");
  } else if (spec.family == Family::turboquant && key == "rounds") {
    spec.rounds = parse_number<int>(value, whole, "rounds");
    if (spec.rounds != 1 && spec.rounds != 2) fail(whole, "rounds must be 1 or 2");
  } else if (spec.family == Family::turboquant && key == "seed") {
    spec.seed = parse_number<uint64_t>(value, whole, "seed");
  } else {
    fail(whole, "option \"" + std::string(key) + "\" does not belong to " + std::string(name_of(spec.family)));
  }
}

}  // namespace

std::string_view name_of(Family family) {
  switch (family) {
    case Family::full: return "full";
    case Family::affine: return "affine";
    case Family::turboquant: return "turboquant";
  }
  return "?";
}

std::string known_codecs() {
  return "full[:fp16|bf16|fp32], affine:{2,3,4,5,6,8}[,group=32|64|128], turboquant:{1..6}[,rounds=1|2][,seed=N]";
}

Spec Spec::parse(std::string_view text) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view head = text.substr(0, comma);
  const size_t colon = std::min(head.find(':'), head.size());
  Spec spec;
  spec.family = parse_family(head.substr(0, colon), text);
  parse_parameter(spec, head.substr(std::min(colon + 1, head.size())), colon < head.size(), text);
  for (size_t at = comma; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view option = text.substr(at + 1, end - at - 1);
    const size_t equals = option.find('=');
    if (equals == std::string_view::npos) fail(text, "option \"" + std::string(option) + "\" is not of the form key=value");
    parse_option(spec, option.substr(0, equals), option.substr(equals + 1), text);
    at = end;
  }
  return spec;
}

std::string Spec::str() const {
  const Spec plain;
  std::string text(name_of(family));
  if (family == Family::full) return dtype ? text + (*dtype == Dtype::f16 ? ":fp16" : *dtype == Dtype::bf16 ? ":bf16" : ":fp32") : text;
  text += ":" + std::to_string(bits);
  if (family == Family::affine && group != plain.group) text += ",group=" + std::to_string(group);
  if (family == Family::turboquant && rounds != plain.rounds) text += ",rounds=" + std::to_string(rounds);
  if (family == Family::turboquant && seed != plain.seed) text += ",seed=" + std::to_string(seed);
  return text;
}

}  // namespace tersor::codec
