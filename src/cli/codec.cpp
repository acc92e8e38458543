#include "tersor/codec.h"

#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

using codec::Role;

constexpr int kListedSizes[] = {64, 128, 256};
constexpr double kFullBits = 16;
constexpr const char* kDistortion =
    "E|x - decoded(x)|^2 / E|x|^2 of Gaussian vectors of 128 numbers, exact or measured; of keys where values are not taken";
constexpr const char* kBits =
    "codes and scalars; what a calibration holds once a model (codebooks, orders of channels, means) is not counted";

// The role that a row's figures are of.
Role role_of(const codec::CatalogueRow& row) { return row.values ? Role::values : Role::keys; }

std::optional<double> bits_at(const codec::CatalogueRow& row, int dim) {
  try {
    return codec::bits_per_element(row.spec, role_of(row), dim);
  } catch (const Error&) {
    return std::nullopt;  // no vectors of this size
  }
}

std::string roles_of(const codec::CatalogueRow& row) { return row.keys && row.values ? "both" : row.keys ? "keys" : "values"; }

Json parameters(const codec::Spec& spec) {
  using codec::Family;
  Json json{{"bits", spec.bits}};
  if (spec.family == Family::affine || spec.family == Family::mxfp4 || spec.family == Family::mxfp8) json["group"] = spec.group;
  if (spec.family == Family::turboquant) json["rounds"] = spec.rounds, json["seed"] = spec.seed;
  if (spec.bits2) json["bits2"] = spec.bits2;
  if (spec.sketch_rows) json["sketch_rows"] = spec.sketch_rows;
  if (spec.sub) json["sub"] = spec.sub;
  return json;
}

Json codec_json(const codec::CatalogueRow& row) {
  Json bits = Json::object(), ratios = Json::object();
  for (const int dim : kListedSizes) {
    const auto value = bits_at(row, dim);
    bits[std::to_string(dim)] = value ? Json(*value) : Json();
    ratios[std::to_string(dim)] = value ? Json(kFullBits / *value) : Json();
  }
  return {{"codec", row.spec.str()},
          {"family", codec::name_of(row.spec.family)},
          {"about", row.about},
          {"parameters", parameters(row.spec)},
          {"bits_per_element", bits},
          {"ratio", ratios},
          {"distortion", row.distortion},
          {"keys", row.keys},
          {"values", row.values},
          {"needs", row.needs},
          {"calibrated", codec::needs_calibration(row.spec)}};
}

std::string as_text() {
  Rows rows{{"codec"}}, words{{"codec", "roles", "what it is", "needs"}};
  for (const int dim : kListedSizes) rows[0].push_back("bits d=" + std::to_string(dim)), rows[0].push_back("ratio");
  rows[0].push_back("distortion");
  for (const auto& row : codec::catalogue()) {
    rows.push_back({row.spec.str()});
    for (const int dim : kListedSizes) {
      const auto value = bits_at(row, dim);
      rows.back().push_back(value ? fixed(*value, 3) : "-");
      rows.back().push_back(value ? fixed(kFullBits / *value, 2) : "-");
    }
    rows.back().push_back(brief(row.distortion));
    words.push_back({row.spec.str(), roles_of(row), row.about, row.needs.empty() ? "nothing" : row.needs});
  }
  return table(rows) + "bits: " + kBits + "\ndistortion: " + kDistortion + "\n\n" + columns(words) + "\n" + codec::known_codecs() + "\n";
}

int run_list(bool json) {
  if (!json) {
    print(as_text());
    return 0;
  }
  Json list = Json::array();
  for (const auto& row : codec::catalogue()) list.push_back(codec_json(row));
  print_json({{"codecs", list}, {"distortion", kDistortion}, {"bits", kBits}, {"help", codec::known_codecs()}});
  return 0;
}

void add_list(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand("list",
                                        "List codecs of every family: bits per element with scalars and the ratio to 16 bits by head size, "
                                        "distortion, roles, what they need.");
  app->footer("Example: tersor codec list --json");
  auto json = std::make_shared<bool>(false);
  add_json(*app, *json);
  commands.push_back({app, [json] { return run_list(*json); }});
}

}  // namespace

void add_codec(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand("codec", "List the codecs, or run one over an array from a file.");
  add_list(*app, commands);
  add_codec_roundtrip(*app, commands);
}

}  // namespace tersor::cli
