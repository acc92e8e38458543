#include "codec/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "codec/kmeans.h"
#include "codec/levels.h"
#include "codec/rotation.h"

namespace tersor::codec {
namespace {

std::vector<float> mean_of(std::span<const float> vectors, int dim) {
  std::vector<double> sum(dim, 0.0);
  for (size_t i = 0; i < vectors.size(); ++i) sum[i % dim] += cleaned(vectors[i]);
  const double count = static_cast<double>(vectors.size()) / dim;
  std::vector<float> mean(dim);
  std::transform(sum.begin(), sum.end(), mean.begin(), [count](double s) { return static_cast<float>(s / count); });
  return mean;
}

// sqrt(max |K|) of each channel; a channel that is always zero needs no scaling.
std::vector<float> smoothing_of(std::span<const float> vectors, int dim) {
  std::vector<float> largest(dim, 0.0f);
  for (size_t i = 0; i < vectors.size(); ++i) largest[i % dim] = std::max(largest[i % dim], std::abs(cleaned(vectors[i])));
  for (float& v : largest) v = v > 0 ? std::sqrt(v) : 1.0f;
  return largest;
}

}  // namespace

std::vector<int> channels_by_rms(std::span<const float> vectors, int dim) {
  std::vector<double> energy(dim, 0.0);
  for (size_t i = 0; i < vectors.size(); ++i) energy[i % dim] += static_cast<double>(cleaned(vectors[i])) * cleaned(vectors[i]);
  std::vector<int> channels(dim);
  std::iota(channels.begin(), channels.end(), 0);
  std::stable_sort(channels.begin(), channels.end(), [&](int a, int b) { return energy[a] > energy[b]; });
  return channels;
}

void smooth_key(const Rotation& hadamard, std::span<const float> smoothing, std::span<double> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] /= smoothing[i];
  hadamard.apply(x);
}

int64_t advised_vectors(const Spec& spec, int dim) {
  if (spec.family != Family::vecinfer) return 1;
  const int64_t parts = dim / spec.sub, points = kPointsPerCentroid << spec.bits;
  return (points + parts - 1) / parts;
}

CalibrationResult calibrate(const Spec& spec, Role role, int dim, std::span<const float> vectors, uint64_t seed,
                            const std::function<bool(int, double)>& progress) {
  form_of(spec, role, dim);
  if (vectors.empty() || vectors.size() % dim != 0)
    throw Error("calibration of " + spec.str() + ": " + std::to_string(vectors.size()) + " numbers are not vectors of " +
                std::to_string(dim));
  CalibrationResult result;
  Calibration& c = result.calibration;
  c.channels = channels_by_rms(vectors, dim);
  c.mean = mean_of(vectors, dim);
  if (spec.family != Family::vecinfer) return result;
  std::vector<float> points(vectors.size());
  std::transform(vectors.begin(), vectors.end(), points.begin(), [](float v) { return cleaned(v); });
  if (role == Role::keys) {
    c.smoothing = smoothing_of(vectors, dim);
    const Rotation hadamard = Rotation::without_signs(dim);
    for (size_t at = 0; at < points.size(); at += dim) {
      std::vector<double> x(points.begin() + at, points.begin() + at + dim);
      smooth_key(hadamard, c.smoothing, x);
      std::copy(x.begin(), x.end(), points.begin() + at);
    }
  }
  KMeansOptions options;
  options.seed = seed, options.progress = progress;
  const KMeans trained = kmeans(points, spec.sub, 1 << spec.bits, options);
  c.centroids = trained.centroids;
  if (trained.few_points)
    result.warning = std::to_string(points.size() / spec.sub / (size_t{1} << spec.bits)) + " sub-vectors a centroid are few; give " +
                     std::to_string(advised_vectors(spec, dim)) + " vectors a head for " + std::to_string(kPointsPerCentroid);
  return result;
}

}  // namespace tersor::codec
