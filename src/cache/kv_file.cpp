// A saved cache: a safetensors file whose metadata names everything that must agree before its bytes may be used.
#include <mlx/allocator.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <charconv>
#include <cstring>

#include "base/digest.h"
#include "base/safetensors.h"
#include "cache/layer_state.h"
#include "cache/slabs.h"

namespace tersor::cache {
namespace {

constexpr const char* kFormat = "tersor-kv";
constexpr const char* kVersion = "2";
constexpr const char* kDigest = "digest";
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

// Over everything but the entry that holds it.
std::string digest_of(const std::map<std::string, std::string>& header, std::span<const safetensors::Tensor> tensors) {
  Digest digest;
  for (const auto& [key, value] : header) {
    if (key == kDigest) continue;
    digest.add(key);
    digest.add(value);
  }
  for (const safetensors::Tensor& tensor : tensors) {
    digest.add(tensor.name);
    digest.add(tensor.data.data(), tensor.data.size());
  }
  return digest.str();
}

// The entry "arrangement" has a letter a layer; files of processors, whose tokens all lie in lanes, have none.
char arrangement_of(const LayerCache::State& state) { return state.body_format->fragments() ? 'f' : 'l'; }

int64_t recent_first(const LayerCache::State& state) { return state.recent ? state.recent->first : 0; }

// The metadata of a loaded file, with errors that name what differs.
class Header {
 public:
  Header(const safetensors::File& file) : file_(file) {
    if (text("format") != kFormat) fail("is not a saved key/value cache of Tersor; make one with --prompt-cache-out");
    if (text("version") != kVersion)
      fail("has format version " + text("version") + ", this program reads version " + std::string(kVersion) + "; make the file again");
  }
  [[noreturn]] void fail(const std::string& why) const { throw Error(file_.path().string() + ": " + why); }
  std::string text(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? std::string() : found->second;
  }
  int64_t number(const std::string& key, int64_t low, int64_t high) const {
    const std::string value = text(key);
    int64_t n = 0;
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (value.empty() || code != std::errc() || end != value.data() + value.size() || n < low || n > high)
      fail("header entry \"" + key + "\" is \"" + value + "\" instead of a number from " + std::to_string(low) + " to " +
           std::to_string(high) + "; the file is damaged");
    return n;
  }
  void check_digest() const {
    if (text(kDigest) != digest_of(file_.metadata(), file_.tensors()))
      fail("its contents do not match its digest; the file is damaged, make it again");
  }
  void check_model(const Identity& model) const {
    for (const auto& [key, value] : model)
      if (const std::string theirs = text("model." + key); theirs != value)
        fail("belongs to another model: its " + key + " is \"" + theirs + "\", this model's is \"" + value +
             "\"; use it with the model it was made with");
  }
  Identity extra() const {
    Identity result;
    for (const auto& [key, value] : file_.metadata())
      if (key.rfind("extra.", 0) == 0) result[key.substr(6)] = value;
    return result;
  }

 private:
  const safetensors::File& file_;
};

// The bytes of a tensor that must have exactly this size.
std::span<const std::byte> bytes_of(const safetensors::File& file, const Header& header, const std::string& name, uint64_t bytes) {
  const safetensors::Tensor* tensor = file.find(name);
  if (!tensor) header.fail("tensor \"" + name + "\" is missing; the file is damaged");
  if (tensor->dtype != "U8" || tensor->data.size() != bytes)
    header.fail("tensor \"" + name + "\" holds " + std::to_string(tensor->data.size()) + " bytes of " + tensor->dtype + ", expected " +
                std::to_string(bytes) + " of U8; the file is damaged");
  return tensor->data;
}

// A slab filled from its tensor.
ops::KvSlab filled(const safetensors::File& file, const Header& header, const std::string& name,
                   std::shared_ptr<const ops::KvFormat> format, int64_t first, int64_t count) {
  const int64_t capacity = (count + format->granularity() - 1) / format->granularity() * format->granularity();
  const uint64_t bytes = static_cast<uint64_t>(format->batch) * format->heads * format->head_bytes(capacity);
  const auto from = bytes_of(file, header, name, bytes);
  ops::KvSlab slab = ops::KvSlab::make(std::move(format), capacity, first);
  mx::array data(mx::allocator::malloc(bytes), slab.data.shape(), mx::uint8);
  std::memcpy(data.data<uint8_t>(), from.data(), bytes);
  slab.data = std::move(data);
  slab.count = count;
  return slab;
}

void check_arrangement(const LayerCache::State& state, const Header& header, size_t layer) {
  const std::string all = header.text("arrangement");
  if ((layer < all.size() ? all[layer] : 'l') != arrangement_of(state))
    header.fail("was written on another kind of device, whose kernels want tokens in another order; read it there, or make it again here");
}

void restore(LayerCache::State& state, const safetensors::File& file, const Header& header, const std::string& prefix, int64_t tokens) {
  state.tokens = tokens;
  if (tokens == 0) return;
  state.body.push_back(filled(file, header, prefix + "body", state.body_format, 0, tokens));
  if (state.sinks) { state.sink_slab = filled(file, header, prefix + "sinks", state.sink_format, 0, std::min(tokens, state.sinks)); }
  if (state.window) {
    const int64_t first = header.number("recent_first", 0, tokens - 1);
    if (first % state.recent_format->granularity() != 0)
      header.fail("header entry \"recent_first\" is not on a block boundary; the file is damaged");
    state.recent = filled(file, header, prefix + "recent", state.recent_format, first, tokens - first);
  }
  if (state.keys.centre > 0) {
    const mx::Shape shape{state.shape.batch, state.shape.kv_heads, state.shape.key_dim};
    const auto from = bytes_of(file, header, prefix + "centre", mx::zeros(shape).nbytes());
    std::vector<float> numbers(from.size() / sizeof(float));
    std::memcpy(numbers.data(), from.data(), from.size());
    state.centre = mx::array(numbers.data(), shape, mx::float32);
  }
}

}  // namespace

void KvCache::save(const std::filesystem::path& path, const Identity& model, const Identity& extra) const {
  settle();
  std::vector<Saved> saved;
  std::map<std::string, std::string> header{{"format", kFormat},
                                            {"version", kVersion},
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
  header[kDigest] = digest_of(header, tensors);
  safetensors::write(path, tensors, header);
}

KvCache::Loaded KvCache::load(const std::filesystem::path& path, const Identity& model, ops::Policy policy, ops::Precision precision,
                              const ModelCalibration& calibration) {
  const safetensors::File file(path);
  const Header header(file);
  header.check_model(model);
  const int layers = static_cast<int>(header.number("layers", 0, 100000));
  const int64_t tokens = header.number("tokens", 0, kMaxTokens);
  if (tokens > 0 && file.tensors().size() < static_cast<size_t>(layers))
    header.fail("holds fewer tensors than its " + std::to_string(layers) + " layers need; the file is damaged");
  LayerShape shape{static_cast<int>(header.number("batch", 1, 65536)), static_cast<int>(header.number("kv_heads", 0, 65536)),
                   static_cast<int>(header.number("key_dim", 0, codec::kMaxDim)),
                   static_cast<int>(header.number("value_dim", 0, codec::kMaxDim))};
  KvSpec spec;
  Dtype full_dtype;
  try {
    const std::string options = ",window=" + header.text("window") + ",sinks=" + header.text("sinks") +
                                (header.text("skip").empty() ? "" : ",skip=" + header.text("skip"));
    spec = KvSpec::parse(header.text("keys") + options, header.text("values") + options);
    full_dtype = parse_dtype(header.text("full_dtype"));
  } catch (const Error& error) { header.fail(std::string(error.what()) + "; the file is damaged or newer than this program"); }
  if (spec.calibrated() && header.text("calibration") != digest_of(calibration))
    header.fail(calibration.empty() ? "was made with a calibration; name it with --calibration"
                                    : "was made with another calibration than the one given; name that one with --calibration");
  Loaded loaded{KvCache(spec, tokens > 0 ? layers : std::min(layers, 4096), shape, full_dtype, policy, precision, calibration),
                header.extra()};
  for (int i = 0; i < loaded.cache.layers(); ++i) {
    check_arrangement(loaded.cache.layers_[i].state(), header, i);
    restore(loaded.cache.layers_[i].state(), file, header, "layers." + std::to_string(i) + ".", tokens);
  }
  header.check_digest();  // last: a property that differs is the better message
  return loaded;
}

}  // namespace tersor::cache
