#include "cache/calibration_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/safetensors.h"
#include "cache/file_header.h"
#include "codec/layout.h"

namespace tersor::cache {
namespace {

using codec::Role;

constexpr FileHeader::Kind kKind{"tersor-calibration", "1", "is not a calibration of Tersor; make one with tersor calibrate"};
constexpr Role kRoles[] = {Role::keys, Role::values};
constexpr int kMostLayers = 4096, kMostHeads = 65536;

std::string prefix_of(size_t layer, Role role) { return "layers." + std::to_string(layer) + (role == Role::keys ? ".keys." : ".values."); }

/// Which parts of a calibration a codec needs in a role, and how many numbers of a head each has.
struct Need {
  std::vector<uint64_t> channels, smoothing, centroids, mean;  // shapes behind the heads; empty where there is none

  Need(const codec::Spec& spec, Role role, int dim) {
    if (!needs_calibration(spec, role)) return;
    const auto d = static_cast<uint64_t>(dim);
    const bool vecinfer = spec.family == codec::Family::vecinfer;
    if (codec::needs_calibration(spec) && !vecinfer) channels = {d};
    if (vecinfer && role == Role::keys) smoothing = {d};
    if (vecinfer) centroids = {uint64_t{1} << spec.bits, static_cast<uint64_t>(spec.sub)};
    if (role == Role::keys && spec.centre == codec::Spec::kCentreCalibrated) mean = {d};
  }
};

uint64_t product(const std::vector<uint64_t>& shape) {
  uint64_t n = 1;
  for (const uint64_t dim : shape) n *= dim;
  return n;
}

int dim_of(const LayerShape& shape, Role role) { return role == Role::keys ? shape.key_dim : shape.value_dim; }

// Tensors and the memory that they are gathered in.
struct Gathered {
  std::vector<safetensors::Tensor> tensors;
  std::vector<std::vector<std::byte>> memory;

  template <class Number>
  void add(const std::string& name, const char* dtype, const std::vector<uint64_t>& shape, std::span<const codec::Calibration> heads,
           std::vector<Number> codec::Calibration::*part) {
    if (shape.empty()) return;
    std::vector<std::byte>& bytes = memory.emplace_back();
    for (const codec::Calibration& head : heads) {
      if ((head.*part).size() != product(shape)) throw std::invalid_argument("[save_calibration] " + name + " has another size");
      const auto* from = reinterpret_cast<const std::byte*>((head.*part).data());
      bytes.insert(bytes.end(), from, from + (head.*part).size() * sizeof(Number));
    }
    std::vector<uint64_t> stacked{heads.size()};
    stacked.insert(stacked.end(), shape.begin(), shape.end());
    tensors.push_back({name, dtype, std::move(stacked), bytes});
  }
};

template <class Number>
void take(const FileHeader& header, const std::string& name, const char* dtype, const std::vector<uint64_t>& shape,
          std::vector<codec::Calibration>& heads, std::vector<Number> codec::Calibration::*part) {
  if (shape.empty()) return;
  const uint64_t each = product(shape) * sizeof(Number);
  const auto bytes = header.bytes_of(name, dtype, each * heads.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    (heads[h].*part).resize(product(shape));
    std::memcpy((heads[h].*part).data(), bytes.data() + h * each, each);
  }
}

// Numbers that would do harm later.
void check_numbers(const FileHeader& header, const std::string& prefix, const codec::Calibration& c) {
  const auto finite = [](float v) { return std::isfinite(v); };
  for (const auto* numbers : {&c.smoothing, &c.centroids, &c.mean})
    if (!std::all_of(numbers->begin(), numbers->end(), finite)) header.fail(prefix + "*: a number is not finite; the file is damaged");
  if (std::any_of(c.smoothing.begin(), c.smoothing.end(), [](float v) { return v <= 0; }))
    header.fail(prefix + "smoothing: a factor is not above 0; the file is damaged");
  std::vector<int> sorted = c.channels;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<int>(i)) header.fail(prefix + "channels: does not name every channel once; the file is damaged");
}

std::vector<codec::Calibration> read_role(const FileHeader& header, const std::string& prefix, const Need& need, int kv_heads) {
  if (need.channels.empty() && need.centroids.empty() && need.mean.empty()) return {};
  std::vector<codec::Calibration> heads(static_cast<size_t>(kv_heads));
  take(header, prefix + "channels", "I32", need.channels, heads, &codec::Calibration::channels);
  take(header, prefix + "smoothing", "F32", need.smoothing, heads, &codec::Calibration::smoothing);
  take(header, prefix + "centroids", "F32", need.centroids, heads, &codec::Calibration::centroids);
  take(header, prefix + "mean", "F32", need.mean, heads, &codec::Calibration::mean);
  for (const codec::Calibration& head : heads) check_numbers(header, prefix, head);
  return heads;
}

codec::Spec spec_of(const FileHeader& header, const char* key, Role role, int dim) {
  try {
    const codec::Spec spec = codec::Spec::parse(header.text(key));
    codec::form_of(spec, role, dim);
    return spec;
  } catch (const Error& error) {
    header.fail("header entry \"" + std::string(key) + "\": " + error.what() + "; the file is damaged or newer than this program");
  }
}

}  // namespace

void keep_needed(const codec::Spec& spec, Role role, codec::Calibration& calibration) {
  const Need need(spec, role, 1);
  if (need.channels.empty()) calibration.channels.clear();
  if (need.smoothing.empty()) calibration.smoothing.clear();
  if (need.centroids.empty()) calibration.centroids.clear();
  if (need.mean.empty()) calibration.mean.clear();
}

void save_calibration(const std::filesystem::path& path, const SavedCalibration& c) {
  std::map<std::string, std::string> header{{"format", kKind.format},
                                            {"version", kKind.version},
                                            {"keys", c.keys.str()},
                                            {"values", c.values.str()},
                                            {"layers", std::to_string(c.layers)},
                                            {"layers_done", std::to_string(c.done.size())},
                                            {"kv_heads", std::to_string(c.shape.kv_heads)},
                                            {"key_dim", std::to_string(c.shape.key_dim)},
                                            {"value_dim", std::to_string(c.shape.value_dim)}};
  for (const auto& [key, value] : c.model) header["model." + key] = value;
  for (const auto& [key, value] : c.run) header["run." + key] = value;
  Gathered all;
  for (size_t layer = 0; layer < c.done.size(); ++layer)
    for (const Role role : kRoles) {
      const Need need(c.spec(role), role, dim_of(c.shape, role));
      const auto& heads = role == Role::keys ? c.done[layer].keys : c.done[layer].values;
      const std::string prefix = prefix_of(layer, role);
      all.add(prefix + "channels", "I32", need.channels, heads, &codec::Calibration::channels);
      all.add(prefix + "smoothing", "F32", need.smoothing, heads, &codec::Calibration::smoothing);
      all.add(prefix + "centroids", "F32", need.centroids, heads, &codec::Calibration::centroids);
      all.add(prefix + "mean", "F32", need.mean, heads, &codec::Calibration::mean);
    }
  FileHeader::add_digest(header, all.tensors);
  safetensors::write(path, all.tensors, header);
}

SavedCalibration load_calibration(const std::filesystem::path& path, const Identity* model) {
  const safetensors::File file(path);
  const FileHeader header(file, kKind);
  if (model) header.check_model(*model);
  SavedCalibration c;
  const auto number = [&](const char* key, int high) { return static_cast<int>(header.number(key, 1, high)); };
  c.layers = number("layers", kMostLayers);
  c.shape = {1, number("kv_heads", kMostHeads), number("key_dim", codec::kMaxDim), number("value_dim", codec::kMaxDim)};
  c.keys = spec_of(header, "keys", Role::keys, c.shape.key_dim);
  c.values = spec_of(header, "values", Role::values, c.shape.value_dim);
  const auto done = static_cast<size_t>(header.number("layers_done", 0, c.layers));
  const Need keys(c.keys, Role::keys, c.shape.key_dim), values(c.values, Role::values, c.shape.value_dim);
  for (size_t layer = 0; layer < done; ++layer)
    c.done.push_back({read_role(header, prefix_of(layer, Role::keys), keys, c.shape.kv_heads),
                      read_role(header, prefix_of(layer, Role::values), values, c.shape.kv_heads)});
  c.model = header.entries("model."), c.run = header.entries("run.");
  header.check_digest();  // last: a property that differs is the better message
  return c;
}

}  // namespace tersor::cache
