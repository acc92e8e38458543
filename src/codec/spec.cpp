#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "tersor/codec.h"

namespace tersor::codec {
namespace {

constexpr std::array kAffineBits = {2, 3, 4, 5, 6, 8};
constexpr std::array kAffineGroups = {32, 64, 128};
constexpr int kTurboMaxBits = 6, kMaxSketchRows = 8192, kMaxOutliers = 64, kMaxIndexBits = 12, kMaxCentre = 1 << 20;
constexpr std::array kFamilies = {Family::full,           Family::affine, Family::turboquant, Family::turboquant_prod,
                                  Family::turboquant_rvq, Family::qjl,    Family::vecinfer,   Family::mxfp4,
                                  Family::mxfp8};

// How each name goes on.
constexpr std::pair<std::string_view, std::string_view> kForms[] = {
    {"full", "[:fp16|bf16|fp32]"},
    {"affine", ":{2,3,4,5,6,8}[,group=32|64|128][,axis=channel][,rule=mlx|minmax]"},
    {"mxfp4", "[,rule=ocp]"},
    {"mxfp8", "[,rule=ocp]"},
    {"turboquant", ":{1..6}[.25|.5|.75][,rounds=1|2][,scalar=unbiased|norm|lsq][,seed=N]"},
    {"turboquant-prod", ":{1..6}[,rounds=1|2][,scalar=norm|lsq][,seed=N]"},
    {"turboquant-rvq", ":B1+B2[,book=joint][,stages=1][,rounds=1|2][,scalar=...][,seed=N]"},
    {"qjl", ":ROWS[,sketch=orthogonal|gaussian][,outliers=N][,seed=N]"},
    {"vecinfer", ":BITS,sub=2..16"},
};

// Letters to insert, leave out or replace that make one text of the other.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({replaced, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

// The form of the codec that is named, or meant, or the names of all.
std::string advice(std::string_view text) {
  constexpr size_t kTypingError = 2;
  std::string name(text.substr(0, text.find_first_of(":,")));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const nearest = std::min_element(std::begin(kForms), std::end(kForms),
                                               [&](const auto& a, const auto& b) { return edits(name, a.first) < edits(name, b.first); });
  const std::string form = std::string(nearest->first).append(nearest->second) + (nearest->first == "full" ? "" : "[,centre=N|calibrated]");
  if (text.starts_with(nearest->first)) return "write " + form;
  if (edits(name, nearest->first) <= kTypingError) return "did you mean " + form + "?";
  std::string names;
  for (const auto& known : kForms) names.append(names.empty() ? "" : ", ").append(known.first);
  return "there are " + names + " (tersor codec list)";
}

[[noreturn]] void fail(std::string_view text, const std::string& why) {
  throw Error("codec \"" + std::string(text) + "\": " + why + "; " + advice(text));
}

template <class T>
T parse_number(std::string_view text, std::string_view whole, std::string_view what) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size())
    fail(whole, std::string(what) + " \"" + std::string(text) + "\" is not a number");
  return value;
}

int parse_in_range(std::string_view text, int low, int high, std::string_view whole, std::string_view what) {
  const int value = parse_number<int>(text, whole, what);
  if (value < low || value > high) fail(whole, std::string(what) + " must be from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

template <class T>
struct Named {
  std::string_view name;
  T value;
};
constexpr std::array<Named<ScalarRule>, 3> kScalarRules = {
    {{"unbiased", ScalarRule::unbiased}, {"norm", ScalarRule::norm}, {"lsq", ScalarRule::least_squares}}};
constexpr std::array<Named<SketchKind>, 2> kSketches = {{{"orthogonal", SketchKind::orthogonal}, {"gaussian", SketchKind::gaussian}}};
constexpr std::array<Named<Axis>, 2> kAxes = {{{"token", Axis::token}, {"channel", Axis::channel}}};
constexpr std::array<Named<GroupRule>, 2> kAffineRules = {{{"mlx", GroupRule::mlx}, {"minmax", GroupRule::minmax}}};
constexpr std::array<Named<GroupRule>, 2> kMxRules = {{{"mlx", GroupRule::mlx}, {"ocp", GroupRule::ocp}}};
constexpr std::array<Named<bool>, 2> kBooks = {{{"sequential", false}, {"joint", true}}};

template <class T, size_t N>
T parse_named(std::string_view text, const std::array<Named<T>, N>& names, std::string_view key, std::string_view whole) {
  std::string list;
  for (size_t i = 0; i < N; ++i) {
    if (names[i].name == text) return names[i].value;
    list += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(names[i].name);
  }
  fail(whole, std::string(key) + " must be " + list);
}

template <class T, size_t N>
std::string name_in(const std::array<Named<T>, N>& names, T value) {
  for (const auto& entry : names)
    if (entry.value == value) return std::string(entry.name);
  return "?";
}

bool is_mx(Family family) { return family == Family::mxfp4 || family == Family::mxfp8; }
bool is_rotated(Family family) {
  return family == Family::turboquant || family == Family::turboquant_split || family == Family::turboquant_prod ||
         family == Family::turboquant_rvq;
}
GroupRule default_rule(const Spec& spec) {
  return spec.family == Family::affine && spec.axis == Axis::channel ? GroupRule::minmax : GroupRule::mlx;
}

Family parse_family(std::string_view name, std::string_view whole) {
  for (const Family family : kFamilies)
    if (name == name_of(family)) return family;
  fail(whole, "there is no codec of that name");
}

// turboquant:2.25, 2.5, 2.75: quarters of the channels get a bit more than the rest.
void parse_turboquant_bits(Spec& spec, std::string_view parameter, std::string_view whole) {
  const size_t point = std::min(parameter.find('.'), parameter.size());
  spec.bits = parse_number<int>(parameter.substr(0, point), whole, "the number of bits");
  if (point < parameter.size()) {
    const std::string_view part = parameter.substr(point + 1);
    spec.family = Family::turboquant_split;
    spec.quarters = part == "25" ? 1 : part == "5" ? 2 : part == "75" ? 3 : 0;
    if (spec.quarters == 0) fail(whole, "parts of a bit must be .25, .5 or .75");
    spec.bits2 = spec.bits + 1;
  }
  if (spec.bits < 1 || std::max(spec.bits, spec.bits2) > kTurboMaxBits) fail(whole, std::string(parameter) + " bits are not possible here");
}

void parse_stages(Spec& spec, std::string_view parameter, std::string_view whole) {
  const size_t plus = parameter.find('+');
  if (plus == std::string_view::npos) fail(whole, "the bits of two stages are needed, as in turboquant-rvq:2+2");
  spec.bits = parse_number<int>(parameter.substr(0, plus), whole, "the number of bits");
  spec.bits2 = parse_number<int>(parameter.substr(plus + 1), whole, "the number of bits");
  if (spec.bits < 1 || spec.bits > kTurboMaxBits || spec.bits2 < 1 || spec.bits2 > kTurboMaxBits || spec.bits + spec.bits2 > 8)
    fail(whole, std::string(parameter) + " bits are not possible here: 1 to 6 a stage, at most 8 in all");
}

// rate: vecinfer is named by bits a channel; spec.bits is bits an index, known once sub= is.
void parse_parameter(Spec& spec, std::string_view parameter, bool present, std::string_view whole, double& rate) {
  if (spec.family == Family::full) {
    if (!present) return;
    try {
      spec.dtype = parse_dtype(parameter);
    } catch (const Error&) { fail(whole, "there is no number type \"" + std::string(parameter) + "\""); }
    spec.bits = static_cast<int>(8 * size_of(*spec.dtype));
    return;
  }
  if (is_mx(spec.family)) {
    if (present) fail(whole, std::string(name_of(spec.family)) + " takes no number");
    spec.bits = spec.family == Family::mxfp4 ? 4 : 8, spec.group = 32;
    return;
  }
  const char* example = spec.family == Family::qjl ? ":256" : spec.family == Family::turboquant_rvq ? ":2+2" : ":4";
  if (!present) fail(whole, "the number of bits is missing, as in " + std::string(name_of(spec.family)) + example);
  switch (spec.family) {
    case Family::turboquant: return parse_turboquant_bits(spec, parameter, whole);
    case Family::turboquant_rvq: return parse_stages(spec, parameter, whole);
    case Family::qjl:
      spec.bits = 1;
      spec.sketch_rows = parse_in_range(parameter, 8, kMaxSketchRows, whole, "the number of sketch rows");
      return;
    case Family::vecinfer:
      rate = parse_number<double>(parameter, whole, "the number of bits");
      if (!(rate > 0 && rate <= kMaxIndexBits)) fail(whole, std::string(parameter) + " bits are not possible here");
      return;
    default: break;
  }
  spec.bits = parse_number<int>(parameter, whole, "the number of bits");
  const bool fits = spec.family == Family::affine ? std::count(kAffineBits.begin(), kAffineBits.end(), spec.bits) > 0
                                                  : spec.bits >= 1 && spec.bits <= kTurboMaxBits;
  if (!fits) fail(whole, std::to_string(spec.bits) + " bits are not possible here");
}

bool parse_family_option(Spec& spec, std::string_view key, std::string_view value, std::string_view whole) {
  const Family f = spec.family;
  if (f == Family::affine && key == "group") {
    spec.group = parse_number<int>(value, whole, "group");
    if (std::count(kAffineGroups.begin(), kAffineGroups.end(), spec.group) == 0) fail(whole, "group must be 32, 64 or 128");
  } else if (f == Family::affine && key == "axis") {
    spec.axis = parse_named(value, kAxes, key, whole);
  } else if (f == Family::affine && key == "rule") {
    spec.rule = parse_named(value, kAffineRules, key, whole);
  } else if (is_mx(f) && key == "rule") {
    spec.rule = parse_named(value, kMxRules, key, whole);
  } else if (is_rotated(f) && key == "rounds") {
    spec.rounds = parse_number<int>(value, whole, "rounds");
    if (spec.rounds != 1 && spec.rounds != 2) fail(whole, "rounds must be 1 or 2");
  } else if (is_rotated(f) && key == "scalar") {
    spec.scalar = parse_named(value, kScalarRules, key, whole);
    if (f == Family::turboquant_prod && spec.scalar == ScalarRule::unbiased)
      fail(whole, "turboquant-prod is unbiased whatever its scalar; scalar must be norm or lsq");
  } else if (f == Family::turboquant_rvq && key == "book") {
    spec.joint = parse_named(value, kBooks, key, whole);
  } else if (f == Family::turboquant_rvq && key == "stages") {
    spec.stages = parse_in_range(value, 1, 2, whole, "stages");
  } else if (f == Family::qjl && key == "sketch") {
    spec.sketch = parse_named(value, kSketches, key, whole);
  } else if (f == Family::qjl && key == "outliers") {
    spec.outliers = parse_in_range(value, 0, kMaxOutliers, whole, "outliers");
  } else if (f == Family::vecinfer && key == "sub") {
    spec.sub = parse_in_range(value, 2, 16, whole, "sub");
  } else {
    return false;
  }
  return true;
}

void parse_option(Spec& spec, std::string_view key, std::string_view value, std::string_view whole) {
  if (parse_family_option(spec, key, value, whole)) return;
  if (key == "seed" && (is_rotated(spec.family) || spec.family == Family::qjl)) {
    spec.seed = parse_number<uint64_t>(value, whole, "seed");
  } else if (key == "centre" && spec.family != Family::full) {
    spec.centre = value == "calibrated" ? Spec::kCentreCalibrated : parse_in_range(value, 0, kMaxCentre, whole, "centre");
  } else {
    fail(whole, "option \"" + std::string(key) + "\" does not belong to " + std::string(name_of(spec.family)));
  }
}

// What only the options together decide.
void finish(Spec& spec, double rate, std::string_view whole) {
  if (spec.rule == default_rule(spec)) spec.rule.reset();
  if (spec.family == Family::turboquant_prod && spec.scalar == ScalarRule::norm) spec.scalar = ScalarRule::automatic;
  if (spec.axis == Axis::channel && spec.group > 64) fail(whole, "axis=channel takes groups of 32 or 64 tokens");
  if (spec.family != Family::vecinfer) return;
  if (spec.sub == 0) fail(whole, "the channels an index stands for are missing, as in vecinfer:2,sub=4");
  const double index = rate * spec.sub;
  if (index != std::floor(index) || index < 1 || index > kMaxIndexBits)
    fail(whole, "bits times sub must be a whole number from 1 to " + std::to_string(kMaxIndexBits));
  spec.bits = static_cast<int>(index);
}

// The shortest decimal that is read back as the same number.
std::string decimal(double value) {
  std::array<char, 32> text;
  const auto [end, code] = std::to_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() ? std::string(text.data(), end) : "?";
}

std::string parameter_of(const Spec& spec) {
  switch (spec.family) {
    case Family::full: return !spec.dtype ? "" : *spec.dtype == Dtype::f16 ? ":fp16" : *spec.dtype == Dtype::bf16 ? ":bf16" : ":fp32";
    case Family::mxfp4:
    case Family::mxfp8: return "";
    case Family::turboquant_split: return ":" + decimal(spec.bits + spec.quarters / 4.0);
    case Family::turboquant_rvq: return ":" + std::to_string(spec.bits) + "+" + std::to_string(spec.bits2);
    case Family::qjl: return ":" + std::to_string(spec.sketch_rows);
    case Family::vecinfer: return ":" + decimal(static_cast<double>(spec.bits) / spec.sub);
    default: return ":" + std::to_string(spec.bits);
  }
}

}  // namespace

std::string_view name_of(Family family) {
  switch (family) {
    case Family::full: return "full";
    case Family::affine: return "affine";
    case Family::turboquant:
    case Family::turboquant_split: return "turboquant";
    case Family::turboquant_prod: return "turboquant-prod";
    case Family::turboquant_rvq: return "turboquant-rvq";
    case Family::qjl: return "qjl";
    case Family::vecinfer: return "vecinfer";
    case Family::mxfp4: return "mxfp4";
    case Family::mxfp8: return "mxfp8";
  }
  return "?";
}

std::string known_codecs() {
  std::string all;
  for (const auto& [name, form] : kForms) all.append(all.empty() ? "" : ", ").append(name).append(form);
  return all + "; all but full take centre=N|calibrated for keys";
}

Spec Spec::parse(std::string_view text) {
  if (text.find('/') != text.npos) throw Error("codec \"" + std::string(text) + "\": one codec is wanted here, not KEYS/VALUES");
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view head = text.substr(0, comma);
  const size_t colon = std::min(head.find(':'), head.size());
  Spec spec;
  double rate = 0;
  std::vector<std::string_view> stated;
  spec.family = parse_family(head.substr(0, colon), text);
  parse_parameter(spec, head.substr(std::min(colon + 1, head.size())), colon < head.size(), text, rate);
  for (size_t at = comma; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view option = text.substr(at + 1, end - at - 1);
    const size_t equals = option.find('=');
    const std::string_view key = option.substr(0, std::min(equals, option.size()));
    if (std::find(stated.begin(), stated.end(), key) != stated.end()) fail(text, std::string(key) + "= is stated twice");
    stated.push_back(key);
    if (equals == std::string_view::npos) fail(text, "option \"" + std::string(option) + "\" is not of the form key=value");
    parse_option(spec, key, option.substr(equals + 1), text);
    at = end;
  }
  finish(spec, rate, text);
  return spec;
}

std::string Spec::str() const {
  const Spec plain;
  std::string text = std::string(name_of(family)) + parameter_of(*this);
  const auto add = [&](std::string_view key, const std::string& value) { text.append(",").append(key).append("=").append(value); };
  if (sub != plain.sub) add("sub", std::to_string(sub));
  if (family == Family::affine && group != plain.group) add("group", std::to_string(group));
  if (axis != plain.axis) add("axis", name_in(kAxes, axis));
  if (rule) add("rule", family == Family::affine ? name_in(kAffineRules, *rule) : name_in(kMxRules, *rule));
  if (joint) add("book", name_in(kBooks, joint));
  if (stages != plain.stages) add("stages", std::to_string(stages));
  if (sketch != plain.sketch) add("sketch", name_in(kSketches, sketch));
  if (outliers != plain.outliers) add("outliers", std::to_string(outliers));
  if (rounds != plain.rounds) add("rounds", std::to_string(rounds));
  if (scalar != plain.scalar) add("scalar", name_in(kScalarRules, scalar));
  if (seed != plain.seed) add("seed", std::to_string(seed));
  if (centre != plain.centre) add("centre", centre == kCentreCalibrated ? "calibrated" : std::to_string(centre));
  return text;
}

}  // namespace tersor::codec
