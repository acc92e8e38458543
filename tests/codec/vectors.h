// Random vectors and statistics for the codec tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "codec/calibrate.h"
#include "tersor/codec.h"

namespace tersor::codec {

using Vector = std::vector<float>;
using Random = std::mt19937_64;

inline Vector gaussian(Random& random, int dim, float size = 1) {
  std::normal_distribution<float> normal;
  Vector x(dim);
  for (float& v : x) v = size * normal(random);
  return x;
}

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// x: codec.block_tokens() vectors.
inline Vector roundtrip(const Codec& codec, const Vector& x) {
  Vector y(x.size());
  codec.roundtrip(x, y);
  return y;
}

/// |x - x_hat|^2 / |x|^2
inline double relative_error(const Codec& codec, const Vector& x) {
  const Vector y = roundtrip(codec, x);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i]) - y[i], 2);
  return sum / dot(x, x);
}

inline double mean_relative_error(const Codec& codec, Random& random, int count, float size = 1) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += relative_error(codec, gaussian(random, codec.dim(), size));
  return sum / count;
}

/// A calibration from Gaussian vectors, for the codecs that need one. Channel i has the RMS 1 + i % 5. Large codebooks are not trained.
inline const Calibration& sample_calibration(const Spec& spec, Role role, int dim) {
  static std::map<std::tuple<std::string, Role, int>, Calibration> known;
  const auto key = std::tuple(spec.str(), role, dim);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Random random(17);
  Vector rows;
  for (int64_t n = std::min<int64_t>(advised_vectors(spec, dim), 16384 / dim * 8) + 64; n > 0; --n) {
    const Vector x = gaussian(random, dim);
    for (int i = 0; i < dim; ++i) rows.push_back(x[i] * static_cast<float>(1 + i % 5));
  }
  Spec trained = spec;
  trained.bits = std::min(spec.bits, 6);
  Calibration calibration = calibrate(trained, role, dim, rows, 0, [](int iteration, double) { return iteration < 5; }).calibration;
  if (spec.family == Family::vecinfer && spec.bits > trained.bits) calibration.centroids = gaussian(random, spec.sub << spec.bits, 3);
  return known[key] = std::move(calibration);
}

inline std::shared_ptr<const Codec> make(const std::string& name, Role role, int dim) {
  const Spec spec = Spec::parse(name);
  return Codec::make(spec, role, dim, Dtype::f16, needs_calibration(spec) ? &sample_calibration(spec, role, dim) : nullptr);
}

/// The numbers of an independent computation in NumPy, each measured one with its standard error.
inline const nlohmann::json& codec_reference() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(TERSOR_SOURCE_DIR "/tests/data/codec_reference.json"));
  return json;
}

inline const nlohmann::json& reference() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(TERSOR_SOURCE_DIR "/tests/data/turboquant_reference.json"));
  return json;
}

/// Head sizes up to 256 that have a rotation.
inline std::vector<int> rotation_sizes() {
  std::vector<int> sizes;
  for (const int core : {1, 12, 20, 28, 36, 44, 60})
    for (int size = core; size <= 256; size *= 2) sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

/// Every family, number of bits and group size.
inline std::vector<std::string> compressed_codecs() {
  std::vector<std::string> names;
  for (const char* bits : {"2", "3", "4", "5", "6", "8"})
    for (const char* group : {"32", "64", "128"}) names.push_back(std::string("affine:") + bits + ",group=" + group);
  for (int bits = 1; bits <= 6; ++bits) names.push_back("turboquant:" + std::to_string(bits));
  return names;
}

/// One or two of each family that the lists above do not name.
inline std::vector<std::string> other_codecs() {
  return {"affine:2,group=32,axis=channel",
          "affine:4,axis=channel,rule=mlx",
          "affine:3,group=32,rule=minmax",
          "mxfp4",
          "mxfp4,rule=ocp",
          "mxfp8",
          "mxfp8,rule=ocp",
          "turboquant:3,scalar=norm",
          "turboquant:2.5",
          "turboquant:3.5",
          "turboquant:1.25",
          "turboquant-prod:1",
          "turboquant-prod:2",
          "turboquant-prod:4,scalar=lsq",
          "turboquant-rvq:1+1",
          "turboquant-rvq:2+2,book=joint",
          "turboquant-rvq:3+2,stages=1",
          "turboquant-rvq:4+3",
          "turboquant-rvq:4+4",
          "qjl:64",
          "qjl:256,sketch=gaussian",
          "qjl:128,outliers=4",
          "vecinfer:2,sub=4",
          "vecinfer:1.5,sub=8",
          "vecinfer:4,sub=2"};
}

/// Whether a codec takes vectors of this role and size.
inline bool takes(const std::string& name, Role role, int dim) {
  try {
    form_of(Spec::parse(name), role, dim);
    return true;
  } catch (const Error&) { return false; }
}

}  // namespace tersor::codec
