#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>

#include "cli/calibrations.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

struct RoundtripOptions {
  std::string kv, role = "keys", in, out;
  std::vector<std::string> calibration;
  int layer = 0, head = 0;
  bool json = false;
};

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

// Encodes and decodes in place, as many vectors at a time as the codec takes together. mean: subtracted before and added after.
Moved roundtrip(const codec::Codec& codec, std::span<const float> mean, std::span<float> values) {
  Progress progress("encoding");
  const size_t dim = static_cast<size_t>(codec.dim()), step = dim * static_cast<size_t>(codec.block_tokens());
  std::vector<float> shifted(step), decoded(step);
  Moved moved;
  for (size_t at = 0; at < values.size(); at += step) {
    if (at / step % 1024 == 0) throw_if_interrupted(), progress.update(static_cast<int64_t>(at), static_cast<int64_t>(values.size()));
    const std::span<float> x = values.subspan(at, step);
    for (size_t i = 0; i < step; ++i) shifted[i] = mean.empty() ? x[i] : x[i] - mean[i % dim];
    codec.roundtrip(shifted, decoded);
    if (!mean.empty())
      for (size_t i = 0; i < step; ++i) decoded[i] += mean[i % dim];
    for (size_t i = 0; i < step; i += dim) add(moved, x.subspan(i, dim), std::span(decoded).subspan(i, dim));
    std::copy(decoded.begin(), decoded.end(), x.begin());
  }
  return moved;
}

// What the cache would subtract from keys: the calibration's mean, or that of the first vectors. Numbers that are NaN count as 0.
std::vector<float> mean_of(const codec::Spec& spec, codec::Role role, const codec::Calibration* calibration, std::span<const float> values,
                           size_t dim) {
  if (spec.centre == 0 || role == codec::Role::values) return {};
  if (spec.centre == codec::Spec::kCentreCalibrated) {
    if (!calibration) throw Error("codec " + spec.str() + " needs a calibration; name one with --calibration");
    return calibration->mean;
  }
  const size_t count = std::min(static_cast<size_t>(spec.centre), values.size() / dim);
  std::vector<float> mean(dim);
  for (size_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i)
      if (const float v = values[i * dim + d]; !std::isnan(v)) sum += std::clamp(v, -kLargest, kLargest);
    mean[d] = static_cast<float>(sum / static_cast<double>(count));
  }
  return mean;
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
  const int dim = static_cast<int>(array.shape.back());
  const Calibrations files(options.calibration, nullptr);
  const codec::Calibration* calibration = files.of(spec, role, options.layer, options.head);
  const auto codec = codec::Codec::make(spec, role, dim, Dtype::f16, calibration);
  files.note_unused();
  if (const auto step = static_cast<size_t>(codec->block_tokens()); array.values.size() / static_cast<size_t>(dim) % step != 0)
    throw Error(options.in + ": codec " + spec.str() + " encodes " + std::to_string(step) + " vectors together; give a multiple of that");
  const auto mean = mean_of(spec, role, calibration, array.values, static_cast<size_t>(dim));
  if (!mean.empty() && mean.size() != static_cast<size_t>(dim))
    throw Error(options.in + ": holds vectors of " + std::to_string(dim) + " numbers, the calibration is for " +
                std::to_string(mean.size()));
  const Moved moved = roundtrip(*codec, mean, array.values);
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

}  // namespace

void add_codec_roundtrip(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "roundtrip", "Encode and decode the vectors of a .npy file and say how far they moved: |x - y| / |x|. The last axis is the vector.");
  app->footer("Example: tersor codec roundtrip --kv turboquant:4 --in keys.npy --out decoded.npy");
  auto options = std::make_shared<RoundtripOptions>();
  app->add_option("--kv", options->kv, "Codec")->required()->type_name("CODEC");
  app->add_option("--role", options->role, "What the vectors are")->type_name("keys|values")->capture_default_str();
  add_calibration(*app, options->calibration);
  app->add_option("--layer", options->layer, "The layer whose calibration is taken")
      ->type_name("N")
      ->check(whole(0, 4095))
      ->capture_default_str();
  app->add_option("--head", options->head, "And the KV head")->type_name("N")->check(whole(0, 65535))->capture_default_str();
  app->add_option("--in", options->in, "Array [..., d] of float16, float32 or float64")
      ->required()
      ->type_name("FILE.npy")
      ->check(file_name());
  app->add_option("--out", options->out, "Where the decoded float32 array goes")->required()->type_name("FILE.npy")->check(file_name());
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run_roundtrip(*options); }});
}

}  // namespace tersor::cli
