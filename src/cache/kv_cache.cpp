#include <mlx/device.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cstdio>

#include "base/digest.h"
#include "cache/layer_state.h"
#include "ops/fuse.h"

namespace tersor::cache {
namespace {

// Layers kept in full precision, as indices from 0.
std::vector<bool> skipped_layers(const KvSpec& spec, int layers) {
  std::vector<bool> skipped(layers, false);
  for (const int given : spec.skip) {
    const int layer = given < 0 ? layers + given : given;
    if (layer < 0 || layer >= layers)
      throw Error("skip=" + std::to_string(given) + ": the model has layers 0 to " + std::to_string(layers - 1) + " (-1 is the last)");
    skipped[layer] = true;
  }
  return skipped;
}

// What a layer stores of keys or values, as `shown`, and why that is not what `asked` says, behind `reason`.
void describe(const codec::Spec& asked, const codec::Codec& codec, const codec::Spec& kept, std::string& shown, std::string& reason) {
  codec::Spec effect = kept;
  if (kept.family == codec::Family::affine) effect.group = std::min(kept.group, codec.dim());  // as the codec counts its groups
  shown = effect.str();
  std::string why;
  if (!(kept == asked)) why = "skipped by request";
  if (!(effect == kept)) {
    char bits[32];
    std::snprintf(bits, sizeof bits, "%g", codec.bits_per_element());
    why = "groups of " + std::to_string(kept.group) + " are cut to the head size of " + std::to_string(codec.dim()) + " (" + bits +
          " bits a number)";
  }
  if (why != reason) reason += (reason.empty() || why.empty() ? "" : "; ") + why;
}

}  // namespace

std::string digest_of(const ModelCalibration& calibration) {
  Digest digest;
  for (const LayerCalibration& layer : calibration)
    for (const auto* heads : {&layer.keys, &layer.values})
      for (const codec::Calibration& head : *heads) {
        digest.add(head.channels.data(), head.channels.size() * sizeof(int));
        for (const auto* numbers : {&head.smoothing, &head.centroids, &head.mean})
          digest.add(numbers->data(), numbers->size() * sizeof(float));
      }
  return calibration.empty() ? "" : digest.str();
}

KvCache::KvCache(const KvSpec& spec, int layers, LayerShape shape, Dtype full_dtype, ops::Policy policy, ops::Precision precision,
                 const ModelCalibration& calibration)
    : spec_(spec), full_dtype_(full_dtype) {
  const std::vector<bool> skipped = skipped_layers(spec, layers);
  if (spec.calibrated()) {
    if (calibration.size() != static_cast<size_t>(layers))
      throw Error("codec " + spec.str() + " needs a calibration of " + std::to_string(layers) + " layers, " +
                  (calibration.empty() ? "none was given" : "this one has " + std::to_string(calibration.size())) +
                  "; make one with `tersor calibrate` and name it with --calibration");
    calibration_ = digest_of(calibration);
  }
  for (int i = 0; i < layers; ++i) {
    const codec::Spec full;
    layers_.emplace_back(skipped[i] ? full : spec.keys, skipped[i] ? full : spec.values, spec.window, spec.sinks, shape, full_dtype, policy,
                         precision, spec.calibrated() ? calibration[static_cast<size_t>(i)] : LayerCalibration{});
  }
}

// After this the layers' arrays are all there is to know.
void KvCache::settle() const {
  if (step_ && step_->again) mx::eval(step_->done);
  step_.reset();
}

int64_t KvCache::tokens() const { return layers_.empty() ? 0 : layers_.front().tokens(); }

void KvCache::reserve(int64_t tokens) {
  settle();
  for (LayerCache& layer : layers_) layer.reserve(tokens);
}

int64_t KvCache::trimmable() const {
  int64_t least = tokens();
  for (const LayerCache& layer : layers_) least = std::min(least, layer.trimmable());
  return least;
}

int64_t KvCache::trim(int64_t n) {
  if (n <= 0 || n > tokens() || (n > trimmable() && n != tokens())) return 0;
  settle();
  for (LayerCache& layer : layers_)
    if (layer.trim(n) != n) throw std::logic_error("layers of one cache disagree about trimming");
  return n;
}

KvCache KvCache::copy() const {
  settle();
  KvCache other;
  other.spec_ = spec_, other.full_dtype_ = full_dtype_, other.calibration_ = calibration_;
  for (const LayerCache& layer : layers_) other.layers_.push_back(layer.copy());
  return other;
}

void KvCache::eval() const {
  std::vector<mx::array> all;
  if (step_) all.push_back(step_->done);
  for (const LayerCache& layer : layers_) {
    const auto arrays = layer.arrays();
    all.insert(all.end(), arrays.begin(), arrays.end());
  }
  mx::eval(all);
}

mx::array KvCache::fuse(const mx::array& result, const mx::array& ids, uint64_t model) {
  settle();
  const auto fast = [](const LayerCache& layer) { return layer.state().append_choice.fast && layer.state().attend_choice.fast; };
  if (mx::default_device() == mx::Device::gpu && !std::all_of(layers_.begin(), layers_.end(), fast)) return result;
  std::vector<mx::array> pending{result};
  std::vector<mx::array*> places;
  for (LayerCache& layer : layers_) {
    LayerCache::State& s = layer.state();
    const auto add = [&](ops::KvSlab& slab) {
      if (slab.data.status() != mx::array::unscheduled) return;
      pending.push_back(slab.data);
      places.push_back(&slab.data);
    };
    for (ops::KvSlab& slab : s.body) add(slab);
    if (s.sink_slab) add(*s.sink_slab);
    if (s.recent) add(*s.recent);
    s.ticket.reset();  // what is written next depends on the fused node, which has read everything
  }
  auto fused = ops::fuse(pending, ids);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(fused.results[1 + i]);
  if (fused.recording && ids.size() == 1) step_ = Step{std::move(fused.recording), model, tokens(), std::move(fused.done)};
  return std::move(fused.results[0]);
}

std::optional<mx::array> KvCache::repeat(const mx::array& ids, uint64_t model) {
  if (!step_ || step_->model != model) return std::nullopt;
  for (const LayerCache& layer : layers_)
    if (!layer.advances()) return std::nullopt;
  auto next = ops::repeat(step_->recording, ids, tokens() + 1 - step_->tokens, step_->done);
  if (!next) return std::nullopt;
  for (LayerCache& layer : layers_) layer.advance();
  step_->done = std::move(next->done), step_->again = true;
  return std::move(next->result);
}

uint64_t KvCache::bytes() const {
  uint64_t sum = 0;
  for (const LayerCache& layer : layers_) sum += layer.bytes();
  return sum;
}

uint64_t KvCache::bytes_full() const {
  uint64_t sum = 0;
  for (const LayerCache& layer : layers_) {
    const LayerShape& shape = layer.shape();
    sum += static_cast<uint64_t>(layer.tokens()) * shape.batch * shape.kv_heads * (shape.key_dim + shape.value_dim) * size_of(full_dtype_);
  }
  return sum;
}

std::vector<LayerReport> KvCache::report() const {
  std::vector<LayerReport> rows;
  for (int i = 0; i < layers(); ++i) {
    const LayerCache::State& state = layers_[i].state();
    LayerReport row{i, spec_.keys.str(), spec_.values.str(), "", "", "", state.tokens, layers_[i].bytes()};
    describe(spec_.keys, *state.body_format->keys.codec, state.keys, row.keys, row.reason);
    describe(spec_.values, *state.body_format->values.codec, state.values, row.values, row.reason);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<ops::Choice> KvCache::choices() const {
  std::vector<ops::Choice> all;
  for (const LayerCache& layer : layers_)
    for (const ops::Choice& choice : layer.choices()) {
      const auto same = [&](const ops::Choice& other) {
        return other.op == choice.op && other.problem == choice.problem && other.kernel == choice.kernel;
      };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(choice);
    }
  return all;
}

}  // namespace tersor::cache
