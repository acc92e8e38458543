#include "cli/calibrations.h"

#include "cli/options.h"
#include "cli/output.h"

namespace tersor::cli {
namespace {

using codec::Role;

std::string setting_of(const cache::SavedCalibration& saved) {
  return saved.keys == saved.values ? saved.keys.str() : saved.keys.str() + "/" + saved.values.str();
}

}  // namespace

Calibrations::Calibrations(const std::vector<std::string>& files, const cache::Identity* model) {
  for (const std::string& path : files) {
    entries_.push_back({path, cache::load_calibration(path, model)});
    const cache::SavedCalibration& saved = entries_.back().saved;
    if (!saved.complete())
      throw Error(path + ": holds " + std::to_string(saved.done.size()) + " of " + std::to_string(saved.layers) +
                  " layers; run the tersor calibrate that it is from again, which goes on there");
  }
}

const Calibrations::Entry* Calibrations::find(const codec::Spec& spec, Role role) const {
  if (!cache::needs_calibration(spec, role) || entries_.empty()) return nullptr;
  std::string there;
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.saved.spec(role) == spec) {
      if (found)
        throw Error(found->path + " and " + entry.path + ": are both calibrations for " + (role == Role::keys ? "keys" : "values") +
                    " of " + spec.str() + "; give one of them");
      found = &entry, entry.used = true;
    }
    there += (there.empty() ? "" : ", ") + entry.path + " is for " + setting_of(entry.saved);
  }
  if (found) return found;
  throw Error("codec " + spec.str() + " needs a calibration of its own for " + (role == Role::keys ? "keys" : "values") + ": " + there +
              "; make one with tersor calibrate --kv " + spec.str());
}

cache::ModelCalibration Calibrations::of(const cache::KvSpec& spec) const {
  const Entry *keys = find(spec.keys, Role::keys), *values = find(spec.values, Role::values);
  if (keys && values && keys->saved.layers != values->saved.layers)
    throw Error(keys->path + " and " + values->path + ": are calibrations of different models; give those of one");
  cache::ModelCalibration layers;
  if (keys) layers.resize(keys->saved.done.size());
  if (values) layers.resize(values->saved.done.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (keys) layers[i].keys = keys->saved.done.at(i).keys;
    if (values) layers[i].values = values->saved.done.at(i).values;
  }
  return layers;
}

std::vector<cache::ModelCalibration> Calibrations::of(std::span<const cache::KvSpec> specs) const {
  std::vector<cache::ModelCalibration> list;
  for (const auto& spec : specs) list.push_back(of(spec));
  return list;
}

const codec::Calibration* Calibrations::of(const codec::Spec& spec, Role role, int layer, int head) const {
  const Entry* entry = find(spec, role);
  if (!entry) return nullptr;
  const cache::SavedCalibration& saved = entry->saved;
  if (layer >= saved.layers || head >= saved.shape.kv_heads)
    throw Error(entry->path + ": has " + std::to_string(saved.layers) + " layers and " + std::to_string(saved.shape.kv_heads) +
                " KV heads, counted from 0; give --layer and --head within these");
  const cache::LayerCalibration& one = saved.done[static_cast<size_t>(layer)];
  return &(role == Role::keys ? one.keys : one.values)[static_cast<size_t>(head)];
}

void Calibrations::note_unused() const {
  for (const Entry& entry : entries_)
    if (!entry.used) note(entry.path + ": not used: no setting here is " + setting_of(entry.saved));
}

}  // namespace tersor::cli
