// KV caches that are attended in the form they are stored in.
#pragma once

#include <mlx/array.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tersor/codec.h"
#include "tersor/ops.h"

namespace tersor::ops {
class Recording;  // ops/fuse.h
}

namespace tersor::cache {

namespace mx = mlx::core;

/// Whether a cache's codec needs a calibration of the model in this role: the codec's own, or for keys the mean of centre=calibrated.
bool needs_calibration(const codec::Spec& spec, codec::Role role);

/// What a cache keeps and how: the codecs of keys and values and the options that are the cache's own.
struct KvSpec {
  codec::Spec keys, values;
  int window = 0;         // recent tokens kept in full precision
  int sinks = 0;          // first tokens kept in full precision
  std::vector<int> skip;  // layers kept in full precision; negative counts from the last layer

  /// "turboquant:4", "affine:8,group=32,window=128,sinks=4,skip=0+1+-1": sets keys and values alike. Throws Error.
  static KvSpec parse(std::string_view text);
  /// Keys and values of two strings; cache options may stand in either, but must not contradict each other.
  static KvSpec parse(std::string_view keys, std::string_view values);
  /// The setting that `tersor eval` justifies for small models (see docs/codecs.md).
  static KvSpec recommended();
  std::string str() const;
  /// Whether a calibration of the model is needed.
  bool calibrated() const;
  /// Whether a cache of the other setting can go on with this one: they are equal, or differ in the stages= that are read.
  bool reads(const KvSpec& saved) const;
};

/// Shape of one attention layer's cache.
struct LayerShape {
  int batch = 1;
  int kv_heads = 0;
  int key_dim = 0;    // head size of keys (and queries)
  int value_dim = 0;  // head size of values
  bool operator==(const LayerShape&) const = default;
};

using ops::AttendOptions;

/// What calibration found out about one layer: of each KV head (empty where the codec needs none).
struct LayerCalibration {
  std::vector<codec::Calibration> keys, values;
};
/// Of all attention layers of a model (`tersor calibrate`).
using ModelCalibration = std::vector<LayerCalibration>;
/// Tells calibrations apart; empty for none.
std::string digest_of(const ModelCalibration& calibration);

/// What really happened in one layer, for reports.
struct LayerReport {
  int layer = 0;
  std::string keys_requested, values_requested;
  std::string keys, values;  // in effect
  std::string reason;        // why they differ, or empty
  int64_t tokens = 0;
  uint64_t bytes = 0;  // held by the allocator for this layer, window, sinks and spare room included
};

/// Keys and values of one attention layer. Not thread-safe; append and attend must use one stream.
class LayerCache {
 public:
  /// Precision: of attention over compressed parts; policy forbid and full precision always compute exactly.
  LayerCache(const codec::Spec& keys, const codec::Spec& values, int window, int sinks, LayerShape shape, Dtype full_dtype,
             ops::Policy policy, ops::Precision precision = ops::Precision::int16, const LayerCalibration& calibration = {});
  ~LayerCache();
  LayerCache(LayerCache&&) noexcept;
  LayerCache& operator=(LayerCache&&) noexcept;

  /// Encodes k, v of L new tokens into the cache, in place. Tokens major [B, L, Hkv * D] or heads major [B, Hkv, L, D].
  void append(const mx::array& k, const mx::array& v);
  /// The same for k, and q of the same tokens, that are still to be turned (ops::rope) at the positions that the tokens get: returns
  /// the turned queries. One step where the device has a kernel for both.
  mx::array append_turned(const ops::QueryKeyValue& rows, const ops::RopeParams& rope, const ops::Choice& rope_choice);
  /// Attention of L query rows, the last L tokens of the cache. q is [B, L, Hq * Dk] or [B, Hq, L, Dk]; the result has
  /// q's dtype and the same arrangement with Dv. With a window, attend to a long chunk once: afterwards only the tokens that new
  /// rows can reach are kept in full precision.
  mx::array attend(const mx::array& q, const AttendOptions& options = {});

  /// Whether one more token goes to the same buffers as the last one did and nothing else changes.
  bool advances() const;
  /// Takes in a token that a repeated step has appended (KvCache::repeat).
  void advance();

  int64_t tokens() const;
  const LayerShape& shape() const;
  /// Room for `tokens` in all without further growth; exact, so that nothing is over-allocated.
  void reserve(int64_t tokens);
  /// How many tokens trim() can take back so that the cache equals one that never saw them.
  int64_t trimmable() const;
  /// Takes back the last n tokens. Removes all n or, when n > trimmable(), none. Returns how many it removed.
  int64_t trim(int64_t n);
  /// Takes back the last n tokens, or all, whatever n is. Beyond trimmable() tokens that were kept in full precision are gone: those before
  /// the new end are then read from their codes, and the window fills again as tokens come.
  void rewind(int64_t n);
  /// A cache with its own memory.
  LayerCache copy() const;
  /// Bytes of every array held.
  uint64_t bytes() const;
  /// The arrays held; evaluate them to finish pending appends.
  std::vector<mx::array> arrays() const;

  /// What the cache holds, to be stored and read back by others: arrays() and one line of text that describes them.
  struct Image;
  Image image() const;
  /// A cache with its own memory, equal to the one the image was taken of. Throws Error that names what does not fit.
  static LayerCache from_image(const Image& image, ops::Policy policy, ops::Precision precision = ops::Precision::int16,
                               const LayerCalibration& calibration = {});
  std::vector<ops::Choice> choices() const;

  struct State;  // cache/layer_state.h
  const State& state() const { return *state_; }
  State& state() { return *state_; }

 private:
  LayerCache();
  std::unique_ptr<State> state_;
};

struct LayerCache::Image {
  std::string header;  // JSON
  std::vector<mx::array> arrays;
};

/// Identity of the model a cache belongs to; every entry must match when a saved cache is loaded.
using Identity = std::map<std::string, std::string>;

/// The caches of all attention layers of a model.
class KvCache {
 public:
  /// Throws Error when a codec does not fit the head size, needs a calibration that is not given, or a skipped layer does not exist.
  KvCache(const KvSpec& spec, int layers, LayerShape shape, Dtype full_dtype, ops::Policy policy,
          ops::Precision precision = ops::Precision::int16, const ModelCalibration& calibration = {});

  /// Waits for a repeated step, which changes the layers' memory behind the back of their arrays.
  LayerCache& layer(int i) {
    settle();
    return layers_.at(i);
  }
  const LayerCache& layer(int i) const { return layers_.at(i); }
  int layers() const { return static_cast<int>(layers_.size()); }
  const KvSpec& spec() const { return spec_; }
  Dtype full_dtype() const { return full_dtype_; }

  int64_t tokens() const;
  void reserve(int64_t tokens);
  int64_t trimmable() const;  // the least of all layers
  int64_t trim(int64_t n);    // all layers or none
  KvCache copy() const;
  void eval() const;  // finish pending appends
  /// Makes one graph node of `result` and of what has been appended and attended for it, and returns the array that stands for it: a
  /// decode step then costs MLX one node. `result` itself must not be used any more. A step of one token can be repeated: `ids` is the
  /// array of its id, which from now on belongs to the cache, and `model` a number that no other model has.
  mx::array fuse(const mx::array& result, const mx::array& ids, uint64_t model);
  /// The next step without building its graph: what fuse() would return for the token `ids` after the step that was fused last. Nothing
  /// when that cannot be: another model, more than one token, buffers that must grow or move, or anything done to the cache in between.
  std::optional<mx::array> repeat(const mx::array& ids, uint64_t model);

  uint64_t bytes() const;
  /// What the same tokens would take in 16-bit (or full_dtype) keys and values.
  uint64_t bytes_full() const;
  std::vector<LayerReport> report() const;
  std::vector<ops::Choice> choices() const;

  /// One safetensors file with a versioned header: codecs, seeds, shapes, token count, model identity, `extra` entries.
  void save(const std::filesystem::path& path, const Identity& model, const Identity& extra = {}) const;
  /// The setting of a saved cache, before it is loaded. Throws Error like load().
  static KvSpec saved_spec(const std::filesystem::path& path);
  struct Loaded;
  /// `as`: the setting to read it with where that is another than the saved one (KvSpec::reads). Throws Error that names the first property
  /// that differs from this model, or what is wrong with the file.
  static Loaded load(const std::filesystem::path& path, const Identity& model, ops::Policy policy,
                     ops::Precision precision = ops::Precision::int16, const ModelCalibration& calibration = {},
                     const KvSpec* as = nullptr);

 private:
  KvCache() = default;
  void settle() const;

  // A fused step and what has happened to it.
  struct Step {
    std::shared_ptr<ops::Recording> recording;
    uint64_t model;
    int64_t tokens;      // in the cache after it
    mx::array done;      // of its latest run
    bool again = false;  // it was repeated: the layers' arrays do not wait for `done`
  };
  mutable std::optional<Step> step_;

  KvSpec spec_;
  Dtype full_dtype_ = Dtype::f16;
  std::string calibration_;  // digest_of the one in use
  std::vector<LayerCache> layers_;
};

struct KvCache::Loaded {
  KvCache cache;
  Identity extra;
};

}  // namespace tersor::cache
