#include "tersor/codec.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

constexpr int kListedSizes[] = {64, 128, 256};
constexpr double kFullBits = 16;

struct RoundtripOptions {
  std::string kv, role = "keys", in, out;
  bool json = false;
};

// Every family at every width it takes, in its plain form.
std::vector<codec::Spec> listed_codecs() {
  std::vector<codec::Spec> specs{codec::Spec::parse("full")};
  for (const char* family : {"affine", "turboquant"})
    for (int bits = 1; bits <= 8; ++bits) {
      try {
        specs.push_back(codec::Spec::parse(std::string(family).append(":").append(std::to_string(bits))));
      } catch (const Error&) {
        continue;  // not a width of this family
      }
    }
  return specs;
}

std::optional<double> bits_at(const codec::Spec& spec, int dim) {
  try {
    return codec::Codec::make(spec, codec::Role::keys, dim)->bits_per_element();
  } catch (const Error&) {
    return std::nullopt;  // no vectors of this size
  }
}

Json parameters(const codec::Spec& spec) {
  Json json{{"bits", spec.bits}};
  if (spec.family == codec::Family::affine) json["group"] = spec.group;
  if (spec.family == codec::Family::turboquant) json["rounds"] = spec.rounds, json["seed"] = spec.seed;
  return json;
}

Json codec_json(const codec::Spec& spec) {
  Json bits = Json::object(), ratios = Json::object();
  for (const int dim : kListedSizes) {
    const auto value = bits_at(spec, dim);
    bits[std::to_string(dim)] = value ? Json(*value) : Json();
    ratios[std::to_string(dim)] = value ? Json(kFullBits / *value) : Json();
  }
  return {{"codec", spec.str()},
          {"family", codec::name_of(spec.family)},
          {"parameters", parameters(spec)},
          {"bits_per_element", bits},
          {"ratio", ratios}};
}

int run_list(bool json) {
  const auto specs = listed_codecs();
  if (json) {
    Json list = Json::array();
    for (const auto& spec : specs) list.push_back(codec_json(spec));
    print_json({{"codecs", list}, {"help", codec::known_codecs()}});
    return 0;
  }
  Rows rows{{"codec", "family"}};
  for (const int dim : kListedSizes) rows[0].push_back("bits d=" + std::to_string(dim)), rows[0].push_back("ratio");
  for (const auto& spec : specs) {
    rows.push_back({spec.str(), std::string(codec::name_of(spec.family))});
    for (const int dim : kListedSizes) {
      const auto value = bits_at(spec, dim);
      rows.back().push_back(value ? fixed(*value, 3) : "-");
      rows.back().push_back(value ? fixed(kFullBits / *value, 2) : "-");
    }
  }
  print(table(rows) + "\n" + codec::known_codecs() + "\n");
  return 0;
}

codec::Role parse_role(const std::string& text) {
  if (text == "keys") return codec::Role::keys;
  if (text == "values") return codec::Role::values;
  throw Error("unknown role \"" + text + "\": use keys or values");
}

constexpr float kLargest = 65504;  // of float16, which codecs keep their scalars in

// How far the vectors moved: sums over those of ordinary numbers alone, so that one NaN does not hide the rest.
struct Moved {
  double error = 0, energy = 0;
  size_t odd_numbers = 0, odd_vectors = 0, vectors = 0;

  bool exact() const { return error == 0; }
  double relative_mse() const { return exact() ? 0 : error / energy; }
  double snr_db() const { return -10 * std::log10(relative_mse()); }
};

void add(Moved& moved, std::span<const float> x, std::span<const float> y) {
  size_t odd = 0;
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    odd += !(std::fabs(x[i]) <= kLargest);
    const double difference = static_cast<double>(x[i]) - y[i];
    error += difference * difference;
    energy += static_cast<double>(x[i]) * x[i];
  }
  ++moved.vectors;
  moved.odd_numbers += odd;
  moved.odd_vectors += odd > 0;
  if (odd) return;
  moved.error += error;
  moved.energy += energy;
}

// Encodes and decodes in place.
Moved roundtrip(const codec::Codec& codec, std::span<float> values) {
  Progress progress("encoding");
  const size_t dim = static_cast<size_t>(codec.dim());
  std::vector<float> decoded(dim);
  Moved moved;
  for (size_t at = 0; at < values.size(); at += dim) {
    if (at / dim % 1024 == 0) throw_if_interrupted(), progress.update(static_cast<int64_t>(at), static_cast<int64_t>(values.size()));
    const std::span<float> x = values.subspan(at, dim);
    codec.roundtrip(x, decoded);
    add(moved, x, decoded);
    std::copy(decoded.begin(), decoded.end(), x.begin());
  }
  return moved;
}

void check_out(const RoundtripOptions& options) {
  if (!options.out.ends_with(".npy")) throw Error("--out " + options.out + ": must end in .npy");
  check_writable(options.out);
  std::error_code code;
  if (std::filesystem::equivalent(options.in, options.out, code))
    throw Error("--out " + options.out + ": is the file that --in reads; give another name");
}

// Nothing to measure is no perfect result.
void check_measured(const Moved& moved, const std::string& in) {
  if (moved.odd_vectors == moved.vectors)
    throw Error(in + ": every vector holds a number that is NaN, infinite or beyond 65504, so nothing can be measured; mend the array");
  if (!moved.exact() && moved.energy == 0) throw Error(in + ": every measured number is 0, so there is no relative error; give others");
}

Json as_json(const RoundtripOptions& options, const codec::Spec& spec, const codec::Codec& codec, const Moved& moved) {
  Json json{{"codec", spec.str()},
            {"role", options.role},
            {"dim", codec.dim()},
            {"vectors", moved.vectors},
            {"odd_numbers", moved.odd_numbers},
            {"odd_vectors", moved.odd_vectors},
            {"bits_per_element", codec.bits_per_element()},
            {"relative_error", std::sqrt(moved.relative_mse())},
            {"relative_mse", moved.relative_mse()},
            {"exact", moved.exact()}};
  if (!moved.exact()) json["snr_db"] = moved.snr_db();  // infinite otherwise, which JSON cannot say
  json["out"] = options.out;
  return json;
}

std::string as_text(const codec::Spec& spec, const codec::Codec& codec, const Moved& moved) {
  return spec.str() + ": " + std::to_string(moved.vectors) + " vectors of " + std::to_string(codec.dim()) + ", " +
         fixed(codec.bits_per_element(), 3) + " bits per element, relative error " + brief(std::sqrt(moved.relative_mse())) +
         (moved.exact() ? " (exact)" : " (SNR " + fixed(moved.snr_db(), 1) + " dB)") + "\n";
}

int run_roundtrip(const RoundtripOptions& options) {
  const codec::Spec spec = codec::Spec::parse(options.kv);
  const codec::Role role = parse_role(options.role);
  check_out(options);
  NpyArray array = read_npy(options.in);
  if (array.shape.empty() || array.shape.back() > 1 << 16)
    throw Error(options.in + ": is not an array of vectors; its last axis must hold 1 to 65536 numbers");
  const auto codec = codec::Codec::make(spec, role, static_cast<int>(array.shape.back()));
  const Moved moved = roundtrip(*codec, array.values);
  check_measured(moved, options.in);
  write_npy(options.out, array.shape, array.values);
  if (options.json)
    print_json(as_json(options, spec, *codec, moved));
  else
    print(as_text(spec, *codec, moved));
  if (moved.odd_numbers && !options.json)
    note(std::to_string(moved.odd_numbers) + " numbers are NaN, infinite or beyond 65504: the " + std::to_string(moved.odd_vectors) +
         " vectors that hold them are left out of the errors");
  return 0;
}

void add_list(CLI::App& parent, Commands& commands) {
  CLI::App* app =
      parent.add_subcommand("list", "List the codecs: parameters, bits per element with scalars, and the ratio to 16 bits by head size.");
  app->footer("Example: tersor codec list --json");
  auto json = std::make_shared<bool>(false);
  add_json(*app, *json);
  commands.push_back({app, [json] { return run_list(*json); }});
}

void add_roundtrip(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "roundtrip", "Encode and decode the vectors of a .npy file and say how far they moved: |x - y| / |x|. The last axis is the vector.");
  app->footer("Example: tersor codec roundtrip --kv turboquant:4 --in keys.npy --out decoded.npy");
  auto options = std::make_shared<RoundtripOptions>();
  app->add_option("--kv", options->kv, "Codec")->required()->type_name("CODEC");
  app->add_option("--role", options->role, "What the vectors are")->type_name("keys|values")->capture_default_str();
  app->add_option("--in", options->in, "Array [..., d] of float16, float32 or float64")
      ->required()
      ->type_name("FILE.npy")
      ->check(file_name());
  app->add_option("--out", options->out, "Where the decoded float32 array goes")->required()->type_name("FILE.npy")->check(file_name());
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run_roundtrip(*options); }});
}

}  // namespace

void add_codec(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand("codec", "List the codecs, or run one over an array from a file.");
  add_list(*app, commands);
  add_roundtrip(*app, commands);
}

}  // namespace tersor::cli
