// A saved calibration (`tersor calibrate`): what every layer's codecs need to know of a model, in one safetensors file.
//
// Metadata: format "tersor-calibration", its version, the codecs of keys and values, the sizes, "model." entries (as of saved caches),
// "run." entries (how it was made), a digest of everything. Tensors, of each layer I and role (keys, values), only what the role's codec
// needs, KV heads stacked: layers.I.ROLE.channels I32 [heads, dim], .smoothing F32 [heads, dim], .centroids F32 [heads, count, sub],
// .mean F32 [heads, dim].
#pragma once

#include <filesystem>

#include "tersor/cache.h"

namespace tersor::cache {

struct SavedCalibration {
  codec::Spec keys, values;
  LayerShape shape;       // of one sequence
  int layers = 0;         // of the model
  ModelCalibration done;  // of the first layers: of all, unless the calibration was interrupted
  Identity model, run;

  bool complete() const { return done.size() == static_cast<size_t>(layers); }
  const codec::Spec& spec(codec::Role role) const { return role == codec::Role::keys ? keys : values; }
};

/// Drops what the codec does not need in this role, which is not saved either: the same calibration then has the same digest_of.
void keep_needed(const codec::Spec& spec, codec::Role role, codec::Calibration& calibration);

void save_calibration(const std::filesystem::path& path, const SavedCalibration& calibration);
/// Throws Error that says what is wrong with the file, or which property of the model differs; without a model only the file counts.
SavedCalibration load_calibration(const std::filesystem::path& path, const Identity* model);

}  // namespace tersor::cache
