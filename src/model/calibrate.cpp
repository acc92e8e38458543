#include "model/calibrate.h"

#include <algorithm>

#include "cache/calibration_file.h"
#include "cache/full_vectors.h"
#include "codec/calibrate.h"
#include "codec/random.h"

namespace tersor::model {
namespace {

using codec::Role;

constexpr int64_t kMostPiece = 4096;         // tokens of a piece: attention to longer ones takes most of the time
constexpr int64_t kStatisticVectors = 4096;  // of means and orders of channels

// The tokens as the model runs them: pieces that each begin anew.
class Pieces {
 public:
  Pieces(std::span<const int32_t> tokens, std::optional<int32_t> begin, int context)
      : tokens_(tokens), begin_(begin), each_(std::min<int64_t>(context, kMostPiece) - (begin ? 1 : 0)) {
    if (tokens.empty()) throw Error("nothing to calibrate on: the text has no tokens; give a longer one");
    if (each_ < 1) throw Error("the model's context of " + std::to_string(context) + " is too short to calibrate");
  }
  int64_t count() const { return (static_cast<int64_t>(tokens_.size()) + each_ - 1) / each_; }
  int64_t positions() const { return static_cast<int64_t>(tokens_.size()) + (begin_ ? count() : 0); }
  std::vector<int32_t> piece(int64_t i) const {
    const auto part = tokens_.subspan(static_cast<size_t>(i * each_));
    std::vector<int32_t> ids;
    if (begin_) ids.push_back(*begin_);
    ids.insert(ids.end(), part.begin(), part.begin() + std::min<int64_t>(each_, static_cast<int64_t>(part.size())));
    return ids;
  }

 private:
  std::span<const int32_t> tokens_;
  std::optional<int32_t> begin_;
  int64_t each_;
};

// At most `wanted` of the positions 0 ... total - 1, all equally likely, rising.
std::vector<int64_t> sample_positions(int64_t total, int64_t wanted, uint64_t seed) {
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < total && static_cast<int64_t>(chosen.size()) < wanted; ++i)
    if (codec::uniform(seed) * static_cast<double>(total - i) < static_cast<double>(wanted) - static_cast<double>(chosen.size()))
      chosen.push_back(i);
  return chosen;
}

// The sampled vectors of one role: of each layer of a group and head, [positions][dim].
struct Sample {
  Role role;
  codec::Spec spec;
  int dim, heads;
  std::vector<int64_t> positions;
  std::vector<std::vector<float>> vectors;  // [layer * heads + head]

  uint64_t layer_bytes() const { return sizeof(float) * positions.size() * static_cast<size_t>(dim) * static_cast<size_t>(heads); }
  void make_room(int layers) {
    vectors.assign(static_cast<size_t>(layers) * static_cast<size_t>(heads), {});
    for (auto& all : vectors) all.resize(positions.size() * static_cast<size_t>(dim));
  }
  // Of a piece that holds positions [first, first + count) of the text.
  void take(const cache::KvCache& cache, int first_layer, int64_t first, int64_t count) {
    const auto low = std::lower_bound(positions.begin(), positions.end(), first);
    std::vector<int64_t> here(low, std::lower_bound(low, positions.end(), first + count));
    for (int64_t& position : here) position -= first;
    const auto offset = static_cast<size_t>(low - positions.begin()) * static_cast<size_t>(dim);
    for (size_t i = 0; i < vectors.size(); ++i) {
      const auto layer = static_cast<int>(i) / heads, head = static_cast<int>(i) % heads;
      cache::read_vectors(cache.layer(first_layer + layer), role, head, here,
                          std::span(vectors[i]).subspan(offset, here.size() * static_cast<size_t>(dim)));
    }
  }
};

class Run {
 public:
  Run(const Transformer& model, std::span<const int32_t> tokens, std::optional<int32_t> begin, const CalibrateOptions& options)
      : model_(model), options_(options), pieces_(tokens, begin, model.config().context) {
    result_.tokens = pieces_.positions();
    add(Role::keys, options.spec.keys, result_.key_vectors);
    add(Role::values, options.spec.values, result_.value_vectors);
    if (samples_.empty()) throw Error("codec " + options.spec.str() + " needs no calibration; use it as it is");
  }

  Calibrated all() {
    uint64_t bytes = 0;
    for (const Sample& sample : samples_) bytes += sample.layer_bytes();
    const int layers = model_.config().layers;
    const int group = static_cast<int>(std::clamp<uint64_t>(options_.sample_bytes / std::max<uint64_t>(bytes, 1), 1, layers));
    for (int first = options_.first_layer; first < layers; first += group) {
      const int count = std::min(group, layers - first);
      collect(first, count);
      for (int i = 0; i < count; ++i) options_.finished(first + i, layer(first, i));
    }
    return result_;
  }

 private:
  void add(Role role, const codec::Spec& spec, int64_t& vectors) {
    if (!cache::needs_calibration(spec, role)) return;
    const int dim = model_.config().head_dim;
    codec::form_of(spec, role, dim);
    const int64_t wanted = wanted_vectors(spec, role, dim);
    samples_.push_back({role, spec, dim, model_.config().kv_heads, sample_positions(result_.tokens, wanted, options_.seed), {}});
    vectors = static_cast<int64_t>(samples_.back().positions.size());
  }

  void progress(const std::string& stage, int64_t done, int64_t total) const {
    if (options_.progress) options_.progress(stage, done, total);
  }

  // Fills the samples with vectors of layers [first, first + count).
  void collect(int first, int count) {
    for (Sample& sample : samples_) sample.make_room(count);
    const std::string stage = "vectors of layers " + std::to_string(first) + " to " + std::to_string(first + count - 1);
    int64_t position = 0;
    for (int64_t i = 0; i < pieces_.count(); ++i) {
      const std::vector<int32_t> ids = pieces_.piece(i);
      cache::KvCache cache = model_.make_cache({}, Dtype::f32);
      model_.prefill(ids, cache, options_.chunk, [&](int64_t done) { progress(stage, position + done, result_.tokens); });
      for (Sample& sample : samples_) sample.take(cache, first, position, static_cast<int64_t>(ids.size()));
      position += static_cast<int64_t>(ids.size());
    }
  }

  cache::LayerCalibration layer(int first, int i) {
    cache::LayerCalibration calibration;
    for (Sample& sample : samples_)
      for (int head = 0; head < sample.heads; ++head) {
        auto& heads = sample.role == Role::keys ? calibration.keys : calibration.values;
        heads.push_back(one(sample, first + i, head, sample.vectors[static_cast<size_t>(i * sample.heads + head)]));
      }
    return calibration;
  }

  codec::Calibration one(const Sample& sample, int layer, int head, std::span<const float> vectors) {
    const int64_t roles = static_cast<int64_t>(samples_.size()), heads = sample.heads, layers = model_.config().layers;
    const int64_t role = &sample - samples_.data();
    const auto step = [&](int, double) {
      progress("codecs of layer " + std::to_string(layer), (layer * roles + role) * heads + head, layers * roles * heads);
      return true;
    };
    step(0, 0);
    codec::CalibrationResult result = codec::calibrate(sample.spec, sample.role, sample.dim, vectors, options_.seed, step);
    if (!result.warning.empty() && result_.warnings++ == 0) result_.warning = result.warning;
    cache::keep_needed(sample.spec, sample.role, result.calibration);
    return std::move(result.calibration);
  }

  const Transformer& model_;
  const CalibrateOptions& options_;
  Pieces pieces_;
  std::vector<Sample> samples_;
  Calibrated result_;
};

}  // namespace

int64_t wanted_vectors(const codec::Spec& spec, codec::Role role, int dim) {
  if (!cache::needs_calibration(spec, role)) return 0;
  return std::max(codec::advised_vectors(spec, dim), kStatisticVectors);
}

Calibrated calibrate(const Transformer& model, std::span<const int32_t> tokens, std::optional<int32_t> begin,
                     const CalibrateOptions& options) {
  return Run(model, tokens, begin, options).all();
}

}  // namespace tersor::model
