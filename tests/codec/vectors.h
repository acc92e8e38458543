// Random vectors and statistics for the codec tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

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

inline std::shared_ptr<const Codec> make(const std::string& name, Role role, int dim) { return Codec::make(Spec::parse(name), role, dim); }

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

}  // namespace tersor::codec
