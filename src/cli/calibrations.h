// The files that --calibration names, and which setting takes what from them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cache/calibration_file.h"
#include "tersor/model.h"

namespace tersor::cli {

class Calibrations {
 public:
  Calibrations() = default;
  /// Reads the files. `model`: whose they must be; null where there is none to compare with.
  Calibrations(const std::vector<std::string>& files, const cache::Identity* model);

  /// What a setting needs: for each role the file that is for exactly its codec. Empty where nothing is needed, or where no files were
  /// given, which whoever needs one says itself. Throws Error when none of the files fits.
  cache::ModelCalibration of(const cache::KvSpec& spec) const;
  std::vector<cache::ModelCalibration> of(std::span<const cache::KvSpec> specs) const;
  /// What a codec alone needs, of one layer and KV head.
  const codec::Calibration* of(const codec::Spec& spec, codec::Role role, int layer, int head) const;
  /// One line on standard error for each file that no setting so far has needed.
  void note_unused() const;

 private:
  struct Entry {
    std::string path;
    cache::SavedCalibration saved;
    mutable bool used = false;
  };
  const Entry* find(const codec::Spec& spec, codec::Role role) const;

  std::vector<Entry> entries_;
};

}  // namespace tersor::cli
