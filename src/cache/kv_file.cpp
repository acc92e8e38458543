// A saved cache: a safetensors file whose metadata names everything that must agree before its bytes may be used.
#include <mlx/allocator.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cstring>

#include "base/safetensors.h"
#include "cache/file_header.h"
#include "cache/layer_state.h"
#include "cache/slabs.h"

namespace tersor::cache {
namespace {

constexpr FileHeader::Kind kKind{"tersor-kv", "2", "is not a saved key/value cache of Tersor; make one with --prompt-cache-out"};
constexpr int64_t kMaxTokens = 1 << 24;

struct Saved {
  std::string name;
  mx::array data;
};

// The slabs of one layer without spare room.
void collect(const LayerCache::State& state, const std::string& prefix, std::vector<Saved>& saved) {
  if (state.tokens == 0) return;
  saved.push_back({prefix + "body", joined(state.body).data});
  if (state.sink_slab) saved.push_back({prefix + "sinks", moved(*state.sink_slab, 0, state.sink_slab->count).data});
  if (state.recent) saved.push_back({prefix + "recent", moved(*state.recent, state.recent->first, state.recent->count).data});
  if (state.keys.centre > 0) saved.push_back({prefix + "centre", mx::view(*state.centre, mx::uint8)});
}

// The entry "arrangement" has a letter a layer; files of processors, whose tokens all lie in lanes, have none.
char arrangement_of(const LayerCache::State& state) { return state.body_format->fragments() ? 'f' : 'l'; }

int64_t recent_first(const LayerCache::State& state) { return state.recent ? state.recent->first : 0; }

// A slab filled from its tensor.
ops::KvSlab filled(const FileHeader& header, const std::string& name, std::shared_ptr<const ops::KvFormat> format, int64_t first,
                   int64_t count) {
  const int64_t capacity = (count + format->granularity() - 1) / format->granularity() * format->granularity();
  const uint64_t bytes = static_cast<uint64_t>(format->batch) * format->heads * format->head_bytes(capacity);
  const auto from = header.bytes_of(name, "U8", bytes);
  ops::KvSlab slab = ops::KvSlab::make(std::move(format), capacity, first);
  mx::array data(mx::allocator::malloc(bytes), slab.data.shape(), mx::uint8);
  std::memcpy(data.data<uint8_t>(), from.data(), bytes);
  slab.data = std::move(data);
  slab.count = count;
  return slab;
}

void check_arrangement(const LayerCache::State& state, const FileHeader& header, size_t layer) {
  const std::string all = header.text("arrangement");
  if ((layer < all.size() ? all[layer] : 'l') != arrangement_of(state))
    header.fail("was written on another kind of device, whose kernels want tokens in another order; read it there, or make it again here");
}

void restore(LayerCache::State& state, const FileHeader& header, const std::string& prefix, int64_t tokens) {
  state.tokens = tokens;
  if (tokens == 0) return;
  state.body.push_back(filled(header, prefix + "body", state.body_format, 0, tokens));
  if (state.sinks) { state.sink_slab = filled(header, prefix + "sinks", state.sink_format, 0, std::min(tokens, state.sinks)); }
  if (state.window) {
    const int64_t first = header.number("recent_first", 0, tokens - 1);
    if (first % state.recent_format->granularity() != 0)
      header.fail("header entry \"recent_first\" is not on a block boundary; the file is damaged");
    if (first > state.unfinished_group() && tokens > state.unfinished_group())
      header.fail("header entry \"recent_first\" leaves out keys that are not encoded yet; the file is damaged");
    state.recent = filled(header, prefix + "recent", state.recent_format, first, tokens - first);
  }
  if (state.keys.centre > 0) {
    const mx::Shape shape{state.shape.batch, state.shape.kv_heads, state.shape.key_dim};
    const auto from = header.bytes_of(prefix + "centre", "U8", mx::zeros(shape).nbytes());
    std::vector<float> numbers(from.size() / sizeof(float));
    std::memcpy(numbers.data(), from.data(), from.size());
    state.centre = mx::array(numbers.data(), shape, mx::float32);
  }
}

// What f reads from the header's texts.
template <class F>
auto understood(const FileHeader& header, F&& f) {
  try {
    return f();
  } catch (const Error& error) { header.fail(std::string(error.what()) + "; the file is damaged or newer than this program"); }
}

KvSpec spec_of(const FileHeader& header) {
  return understood(header, [&] {
    const std::string options = ",window=" + header.text("window") + ",sinks=" + header.text("sinks") +
                                (header.text("skip").empty() ? "" : ",skip=" + header.text("skip"));
    return KvSpec::parse(header.text("keys") + options, header.text("values") + options);
  });
}

}  // namespace

KvSpec KvCache::saved_spec(const std::filesystem::path& path) {
  const safetensors::File file(path);
  return spec_of(FileHeader(file, kKind));
}

void KvCache::save(const std::filesystem::path& path, const Identity& model, const Identity& extra) const {
  settle();
  std::vector<Saved> saved;
  std::map<std::string, std::string> header{{"format", kKind.format},
                                            {"version", kKind.version},
                                            {"keys", spec_.keys.str()},
                                            {"values", spec_.values.str()},
                                            {"window", std::to_string(spec_.window)},
                                            {"sinks", std::to_string(spec_.sinks)},
                                            {"full_dtype", std::string(name_of(full_dtype_))},
                                            {"layers", std::to_string(layers())},
                                            {"tokens", std::to_string(tokens())}};
  std::string skip;
  for (const int layer : spec_.skip) skip += (skip.empty() ? "" : "+") + std::to_string(layer);
  header["skip"] = skip;
  if (!calibration_.empty()) header["calibration"] = calibration_;
  int64_t first = 0;
  for (int i = 0; i < layers(); ++i) {
    collect(layers_[i].state(), "layers." + std::to_string(i) + ".", saved);
    first = std::max(first, recent_first(layers_[i].state()));
  }
  header["recent_first"] = std::to_string(first);
  std::string arrangement;
  for (const LayerCache& layer : layers_) arrangement += arrangement_of(layer.state());
  if (arrangement.find('f') != std::string::npos) header["arrangement"] = arrangement;
  const LayerShape shape = layers_.empty() ? LayerShape{} : layers_.front().shape();
  header["batch"] = std::to_string(shape.batch), header["kv_heads"] = std::to_string(shape.kv_heads);
  header["key_dim"] = std::to_string(shape.key_dim), header["value_dim"] = std::to_string(shape.value_dim);
  for (const auto& [key, value] : model) header["model." + key] = value;
  for (const auto& [key, value] : extra) header["extra." + key] = value;

  std::vector<mx::array> arrays;
  for (const Saved& entry : saved) arrays.push_back(entry.data);
  mx::eval(arrays);
  std::vector<safetensors::Tensor> tensors;
  for (size_t i = 0; i < saved.size(); ++i) {
    const auto& dims = arrays[i].shape();
    tensors.push_back({saved[i].name, "U8", {dims.begin(), dims.end()}, {arrays[i].data<std::byte>(), arrays[i].nbytes()}});
  }
  FileHeader::add_digest(header, tensors);
  safetensors::write(path, tensors, header);
}

KvCache::Loaded KvCache::load(const std::filesystem::path& path, const Identity& model, ops::Policy policy, ops::Precision precision,
                              const ModelCalibration& calibration, const KvSpec* as) {
  const safetensors::File file(path);
  const FileHeader header(file, kKind);
  header.check_model(model);
  const int layers = static_cast<int>(header.number("layers", 0, 100000));
  const int64_t tokens = header.number("tokens", 0, kMaxTokens);
  if (tokens > 0 && file.tensors().size() < static_cast<size_t>(layers))
    header.fail("holds fewer tensors than its " + std::to_string(layers) + " layers need; the file is damaged");
  LayerShape shape{static_cast<int>(header.number("batch", 1, 65536)), static_cast<int>(header.number("kv_heads", 0, 65536)),
                   static_cast<int>(header.number("key_dim", 0, codec::kMaxDim)),
                   static_cast<int>(header.number("value_dim", 0, codec::kMaxDim))};
  const KvSpec saved = spec_of(header), spec = as ? *as : saved;
  if (!spec.reads(saved)) header.fail("holds a cache of " + saved.str() + ", which cannot be read as " + spec.str());
  const Dtype full_dtype = understood(header, [&] { return parse_dtype(header.text("full_dtype")); });
  if (spec.calibrated() && header.text("calibration") != digest_of(calibration))
    header.fail(calibration.empty() ? "was made with a calibration; name it with --calibration"
                                    : "was made with another calibration than the one given; name that one with --calibration");
  Loaded loaded{KvCache(spec, tokens > 0 ? layers : std::min(layers, 4096), shape, full_dtype, policy, precision, calibration),
                header.entries("extra.")};
  for (int i = 0; i < loaded.cache.layers(); ++i) {
    check_arrangement(loaded.cache.layers_[i].state(), header, i);
    restore(loaded.cache.layers_[i].state(), header, "layers." + std::to_string(i) + ".", tokens);
  }
  header.check_digest();  // last: a property that differs is the better message
  return loaded;
}

}  // namespace tersor::cache
