// From sample vectors of one KV head to the calibration that a codec needs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tersor/codec.h"

namespace tersor::codec {

struct CalibrationResult {
  Calibration calibration;
  std::string warning;  // empty when the sample was large enough
};

/// Vectors that a codebook should be trained on; 1 where one of any number will do.
int64_t advised_vectors(const Spec& spec, int dim);

/// vectors: [n][dim], n >= 1, cleaned like a codec's input. Fills what the spec needs, and the mean. `progress` as of KMeansOptions.
CalibrationResult calibrate(const Spec& spec, Role role, int dim, std::span<const float> vectors, uint64_t seed = 0,
                            const std::function<bool(int iteration, double error)>& progress = {});

/// Channels by falling RMS.
std::vector<int> channels_by_rms(std::span<const float> vectors, int dim);

/// vecinfer's change of basis of one key, in place: x / lambda, then the Hadamard transform without signs.
void smooth_key(const class Rotation& hadamard, std::span<const float> smoothing, std::span<double> x);

}  // namespace tersor::codec
