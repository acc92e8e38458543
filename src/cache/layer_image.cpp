// A layer's cache as arrays and a line of text, for programs that keep caches in files of their own.
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/layer_state.h"
#include "cache/slabs.h"

namespace tersor::cache {
namespace {

using Json = nlohmann::json;
using State = LayerCache::State;

constexpr const char* kFormat = "tersor-layer";
constexpr int kVersion = 1;
constexpr int64_t kMaxTokens = 1 << 24, kMaxHeads = 65536;

[[noreturn]] void fail(const std::string& what) {
  throw Error("the saved layer of a cache " + what + "; make the cache again from its tokens");
}

std::string text(const Json& header, const char* key) {
  const auto it = header.find(key);
  if (it == header.end() || !it->is_string()) fail(std::string("lacks the text \"") + key + "\"");
  return it->get<std::string>();
}

int64_t number(const Json& header, const char* key, int64_t least, int64_t most) {
  const auto it = header.find(key);
  if (it == header.end() || !it->is_number_integer()) fail(std::string("lacks the number \"") + key + "\"");
  const int64_t value = it->get<int64_t>();
  if (value < least || value > most)
    fail(std::string("says \"") + key + "\" is " + std::to_string(value) + ", which is not within " + std::to_string(least) + " and " +
         std::to_string(most));
  return value;
}

// Every header entry a slab has; its array is the one at the same place of the image.
Json describe(const char* kind, const ops::KvSlab& slab) {
  return {{"kind", kind}, {"first", slab.first}, {"count", slab.count}, {"capacity", slab.capacity}};
}

Json header_of(const LayerCache::State& s) {
  Json header{{"format", kFormat},
              {"version", kVersion},
              {"keys", s.keys.str()},
              {"values", s.values.str()},
              {"window", s.window},
              {"sinks", s.sinks},
              {"batch", s.shape.batch},
              {"kv_heads", s.shape.kv_heads},
              {"key_dim", s.shape.key_dim},
              {"value_dim", s.shape.value_dim},
              {"dtype", std::string(name_of(s.full_dtype))},
              {"arrangement", s.body_format->fragments() ? "fragments" : "lanes"},
              {"calibration", s.calibration},
              {"tokens", s.tokens},
              {"centred", s.centre.has_value()}};
  Json slabs = Json::array();
  for (const ops::KvSlab& slab : s.body) slabs.push_back(describe("body", slab));
  if (s.sink_slab) slabs.push_back(describe("sinks", *s.sink_slab));
  if (s.recent) slabs.push_back(describe("recent", *s.recent));
  header["slabs"] = std::move(slabs);
  return header;
}

Json parsed(const std::string& text) {
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object() || header.value("format", Json()) != kFormat) fail("is not one of Tersor's");
  const int64_t version = number(header, "version", 0, 1 << 30);
  if (version != kVersion)
    fail("has version " + std::to_string(version) + " of its format, this program reads " + std::to_string(kVersion));
  return header;
}

// One slab from its entry and its array, with memory of its own: what the image's owner holds must not change when tokens are appended.
ops::KvSlab slab_of(const Json& entry, const mx::array& data, std::shared_ptr<const ops::KvFormat> format) {
  ops::KvSlab slab{std::move(format), data, number(entry, "capacity", 1, 2 * kMaxTokens), number(entry, "first", 0, kMaxTokens),
                   number(entry, "count", 0, kMaxTokens)};
  const ops::KvFormat& f = *slab.format;
  if (slab.capacity % f.granularity() != 0 || slab.count > slab.capacity) fail("has a buffer whose sizes contradict each other");
  const mx::Shape shape{f.batch, f.heads, static_cast<int>(f.head_bytes(slab.capacity))};
  if (data.dtype() != mx::uint8 || data.shape() != shape) fail("has an array of another size than its header says");
  slab.data = own_memory(data);
  slab.data.eval();
  return slab;
}

void restore_centre(State& s, const mx::array& data) {
  const mx::Shape shape{s.shape.batch, s.shape.kv_heads, s.shape.key_dim};
  if (data.dtype() != mx::float32 || data.shape() != shape) fail("has an array of another size than its header says");
  s.centre = data;  // which nothing writes in place
  s.centre->eval();
}

// Buffers must lie one behind the other and hold all tokens.
void check_slabs(const State& s) {
  int64_t at = 0;
  for (const ops::KvSlab& slab : s.body) {
    if (slab.first != at || slab.count != std::clamp<int64_t>(s.tokens - slab.first, 0, slab.capacity))
      fail("has buffers that do not follow each other");
    at += slab.capacity;
  }
  if (at < s.tokens) fail("holds fewer tokens than its header says");
  if (s.tokens > 0 && s.sinks > 0 && (!s.sink_slab || s.sink_slab->first != 0 || s.sink_slab->count != std::min(s.sinks, s.tokens)))
    fail("lacks its first tokens in full precision");
  if (s.recent && (s.recent->first % s.recent_format->granularity() != 0 || s.recent->first + s.recent->count != s.tokens))
    fail("has a window that does not end with the last token");
  if (s.unfinished_group() != s.tokens && (!s.recent || s.recent->first > s.unfinished_group()))
    fail("lacks keys of its last group of tokens");
}

}  // namespace

LayerCache::Image LayerCache::image() const { return {header_of(*state_).dump(), arrays()}; }

LayerCache LayerCache::from_image(const Image& image, ops::Policy policy, ops::Precision precision, const LayerCalibration& calibration) {
  const Json header = parsed(image.header);
  const LayerShape shape{
      static_cast<int>(number(header, "batch", 1, kMaxHeads)), static_cast<int>(number(header, "kv_heads", 1, kMaxHeads)),
      static_cast<int>(number(header, "key_dim", 1, codec::kMaxDim)), static_cast<int>(number(header, "value_dim", 1, codec::kMaxDim))};
  const auto window = static_cast<int>(number(header, "window", 0, kMaxTokens)),
             sinks = static_cast<int>(number(header, "sinks", 0, kMaxTokens));
  LayerCache cache(codec::Spec::parse(text(header, "keys")), codec::Spec::parse(text(header, "values")), window, sinks, shape,
                   parse_dtype(text(header, "dtype")), policy, precision, calibration);
  State& s = *cache.state_;
  if (text(header, "calibration") != s.calibration) fail("was made with another calibration than the one given");
  if (text(header, "arrangement") != (s.body_format->fragments() ? "fragments" : "lanes"))
    fail("was written on another kind of device, whose kernels want tokens in another order");
  s.tokens = number(header, "tokens", 0, kMaxTokens);
  const Json slabs = header.value("slabs", Json::array());
  const bool centred = header.value("centred", false);
  if (!slabs.is_array() || image.arrays.size() != slabs.size() + (centred ? 1 : 0)) fail("has more or fewer arrays than its header says");
  for (size_t i = 0; i < slabs.size(); ++i) {
    const std::string kind = text(slabs[i], "kind");
    if (kind == "body")
      s.body.push_back(slab_of(slabs[i], image.arrays[i], s.body_format));
    else if (kind == "sinks" && s.sinks > 0)
      s.sink_slab = slab_of(slabs[i], image.arrays[i], s.sink_format);
    else if (kind == "recent" && s.window > 0)
      s.recent = slab_of(slabs[i], image.arrays[i], s.recent_format);
    else
      fail("has a buffer of an unknown kind, " + kind);
  }
  if (centred) restore_centre(s, image.arrays.back());
  check_slabs(s);
  if (s.tokens > 0 && s.keys.centre != 0 && !s.centre) fail("lacks the mean of its keys");
  return cache;
}

}  // namespace tersor::cache
