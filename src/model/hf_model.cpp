// A folder with config.json and *.safetensors as a model.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/sniff.h"
#include "model/arrays.h"
#include "model/folder.h"
#include "model/hf_config.h"
#include "model/hf_tokenizer.h"
#include "model/unused_tensors.h"
#include "model/weight_plan.h"

namespace tersor::model {
namespace {

using safetensors::Tensor;

constexpr uint64_t kMaxConfig = uint64_t{16} << 20;

std::optional<mx::Dtype> float_dtype(const std::string& name) {
  if (name == "F32") return mx::float32;
  if (name == "F16") return mx::float16;
  if (name == "BF16") return mx::bfloat16;
  return {};
}

mx::array make(const Tensor& tensor, mx::Dtype dtype) {
  mx::Shape shape;
  for (const uint64_t dim : tensor.shape) shape.push_back(static_cast<mx::ShapeElem>(dim));
  mx::array result = copy_of(tensor.data, std::move(shape), dtype);
  release_pages(tensor.data);
  return result;
}

class Planner {
 public:
  explicit Planner(const std::filesystem::path& folder)
      : folder_(folder),
        json_(hf::Section::read(folder / "config.json", kMaxConfig)),
        config_(hf::read_folder_config(json_)),
        shards_(std::make_shared<hf::Shards>(folder)),
        prefix_(shards_->find("embed_tokens.weight") ? "" : "model.") {}

  LoadPlan plan() {
    LoadPlan result;
    result.data.path = folder_;
    result.data.format = "safetensors";
    result.data.file_bytes = shards_->bytes();
    Config& config = result.data.config = config_.config;
    check_config(config, shards_->tensors().size(), (folder_ / "config.json").string());
    if (!config_.tie_given && !shards_->find("lm_head.weight")) config.tied_head = true;
    for_each_tensor(config, [&](const TensorSpec& spec) { result.jobs.push_back(job(spec)); });
    result.data.unused = unused_text(unused(config));
    result.data.tokenizer = hf::read_folder_tokenizer(folder_, json_, config.vocab);
    return result;
  }

 private:
  // The name in the file, with or without the prefix "model.".
  std::string stored_name(const TensorSpec& spec) const {
    const std::string name = spec.name();
    return name.starts_with("model.") ? prefix_ + name.substr(6) : name;
  }

  const Tensor& find(const std::string& name, const std::vector<uint64_t>& expected) {
    const Tensor* tensor = shards_->find(name);
    if (!tensor)
      throw Error(folder_.string() + ": tensor " + name + " " + shape_text(expected) +
                  " is missing; the folder is incomplete or config.json not its own");
    check_shape(shards_->place_of(name), name, tensor->shape, expected);
    used_.insert(name);
    return *tensor;
  }

  const Tensor& find_floats(const std::string& name, const std::vector<uint64_t>& expected) {
    const Tensor* tensor = shards_->find(name);
    if (tensor && !float_dtype(tensor->dtype))
      throw Error(shards_->place_of(name) + ": tensor " + name + " is " + printable(tensor->dtype) +
                  ", which is not supported here; supported: F32, F16, BF16" +
                  (tensor->dtype == "U32" ? ", and U32 codes with scales and biases" : ""));
    return find(name, expected);
  }

  // Scales of the microscaling formats.
  const Tensor& find_exponents(const std::string& name, const std::vector<uint64_t>& expected) {
    const Tensor& tensor = find(name, expected);
    if (tensor.dtype != "U8")
      throw Error(shards_->place_of(name) + ": tensor " + name + " is " + printable(tensor.dtype) +
                  ", but config.json says mxfp4 or mxfp8, whose scales are U8; they must agree");
    return tensor;
  }

  LoadPlan::Job job(const TensorSpec& spec) {
    const std::string name = stored_name(spec);
    if (spec.cols == 0) {
      const Tensor& t = find_floats(name + ".weight", {static_cast<uint64_t>(spec.rows)});
      return {t.data.size(),
              [shards = shards_, &t, spec](ModelData& data) { data.vectors.emplace(spec.name(), make(t, *float_dtype(t.dtype))); }};
    }
    LoadPlan::Job result = shards_->find(name + ".scales") ? quantised_job(spec, name) : dense_job(spec, name);
    if (!spec.bias) return result;
    const Tensor& bias = find_floats(name + ".bias", {static_cast<uint64_t>(spec.rows)});
    return {result.bytes + bias.data.size(), [run = std::move(result.run), &bias, spec](ModelData& data) {
              run(data);
              data.linears.at(spec.name()).bias = make(bias, *float_dtype(bias.dtype));
            }};
  }

  LoadPlan::Job dense_job(const TensorSpec& spec, const std::string& name) {
    const Tensor& t = find_floats(name + ".weight", {static_cast<uint64_t>(spec.rows), static_cast<uint64_t>(spec.cols)});
    return {t.data.size(), [shards = shards_, &t, spec](ModelData& data) {
              data.linears.emplace(spec.name(), ops::LinearWeight{make(t, *float_dtype(t.dtype)), {}, {}, 0, 0, {}});
            }};
  }

  hf::Quantisation scheme(const TensorSpec& spec, const std::string& name) const {
    auto q = config_.of(spec.name());
    if (config_.overrides.contains(name)) q = config_.of(name);
    if (!q) json_.fail("says that " + name + " is not quantised, but the folder holds " + name + ".scales");
    if (spec.cols % q->group || int64_t{spec.cols} * q->bits % 32)
      json_.fail("quantises " + name + " in groups of " + std::to_string(q->group) + ", which do not divide its rows of " +
                 std::to_string(spec.cols));
    return *q;
  }

  LoadPlan::Job quantised_job(const TensorSpec& spec, const std::string& name) {
    const auto [bits, group, coding] = scheme(spec, name);
    const auto rows = static_cast<uint64_t>(spec.rows), cols = static_cast<uint64_t>(spec.cols);
    const Tensor& codes = find(name + ".weight", {rows, cols * static_cast<uint64_t>(bits) / 32});
    if (codes.dtype != "U32")
      throw Error(shards_->place_of(codes.name) + ": tensor " + codes.name + " is " + printable(codes.dtype) + "; codes must be U32");
    const std::vector<uint64_t> groups{rows, cols / static_cast<uint64_t>(group)};
    if (coding != Coding::affine) return mx_job(spec, codes, find_exponents(name + ".scales", groups), coding);
    const Tensor& scales = find_floats(name + ".scales", groups);
    const Tensor& biases = find_floats(name + ".biases", groups);
    if (scales.dtype != biases.dtype)
      throw Error(shards_->place_of(biases.name) + ": tensor " + biases.name + " is " + biases.dtype + ", but the scales are " +
                  scales.dtype + "; they must agree");
    return {codes.data.size() + scales.data.size() + biases.data.size(),
            [shards = shards_, &codes, &scales, &biases, spec, bits = bits, group = group](ModelData& data) {
              const mx::Dtype dtype = *float_dtype(scales.dtype);
              data.linears.emplace(spec.name(),
                                   ops::LinearWeight{make(codes, mx::uint32), make(scales, dtype), make(biases, dtype), bits, group, {}});
            }};
  }

  LoadPlan::Job mx_job(const TensorSpec& spec, const Tensor& codes, const Tensor& scales, Coding coding) {
    return {codes.data.size() + scales.data.size(), [shards = shards_, &codes, &scales, spec, coding](ModelData& data) {
              ops::LinearWeight weight{make(codes, mx::uint32), make(scales, mx::uint8), {}, coding == Coding::mxfp4 ? 4 : 8, 32, {}};
              weight.coding = coding;
              data.linears.emplace(spec.name(), std::move(weight));
            }};
  }

  // Whether a part of a head that config.json ties to the embedding holds what the embedding holds.
  bool copies_embedding(const std::string& name) const {
    const Tensor& head = *shards_->find(name);
    const Tensor* embedding = shards_->find(prefix_ + "embed_tokens" + name.substr(name.find('.')));
    const bool same = embedding && embedding->dtype == head.dtype && embedding->shape == head.shape &&
                      std::equal(head.data.begin(), head.data.end(), embedding->data.begin(), embedding->data.end());
    release_pages(head.data);
    return same;
  }

  // Tensors without a use that change nothing: buffers of old files, and a tied head that is stored all the same. A model without any of
  // the others would give other results than its makers meant.
  std::vector<std::string> unused(const Config& config) const {
    std::vector<std::string> harmless;
    for (const auto& [name, where] : shards_->tensors()) {
      if (used_.contains(name)) continue;
      const bool buffer =
          name.ends_with(".masked_bias") || name.ends_with("attention.bias") || name.find("rotary_emb") != std::string::npos;
      const bool head = config.tied_head && name.starts_with("lm_head.");
      if (head && !copies_embedding(name))
        throw Error(where.second->path().string() + ": tensor " + printable(name) +
                    " is not what the embedding holds, but config.json ties them; set tie_word_embeddings to false, or take it out");
      if (head || (buffer && layer_of(name, prefix_ + "layers.").value_or(0) < config.layers)) {
        harmless.push_back(name);
        continue;
      }
      throw Error(where.second->path().string() + ": tensor " + printable(name) +
                  why_unused(layer_of(name, prefix_ + "layers."), config.layers, "num_hidden_layers in config.json",
                             " is not part of the model that config.json describes; this variant is not supported"));
    }
    return harmless;
  }

  std::filesystem::path folder_;
  hf::Section json_;
  hf::FolderConfig config_;
  std::shared_ptr<hf::Shards> shards_;
  std::string prefix_;
  std::set<std::string> used_;
};

}  // namespace

LoadPlan plan_folder(const std::filesystem::path& path) { return Planner(path).plan(); }

}  // namespace tersor::model
