// config.json of a model folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/hf_json.h"
#include "tersor/model.h"

namespace tersor::model::hf {

struct Quantisation {
  int bits = 0, group = 0;
  Coding coding = Coding::affine;
  bool operator==(const Quantisation&) const = default;
};

struct FolderConfig {
  Config config;           // tied_head as config.json says; see tie_given
  bool tie_given = false;  // without the key, a missing lm_head means a tied head
  std::optional<Quantisation> quantisation;
  /// By module path ("model.layers.0.mlp.up_proj"); empty: not quantised.
  std::map<std::string, std::optional<Quantisation>> overrides;
  /// What config.json says of a module; empty when it is not quantised.
  std::optional<Quantisation> of(const std::string& module) const;
};

/// Throws Error naming file and key for families and options that are not supported and for values that cannot be.
/// Missing optional keys take the defaults of Hugging Face's configuration classes.
FolderConfig read_folder_config(const Section& json);

}  // namespace tersor::model::hf
