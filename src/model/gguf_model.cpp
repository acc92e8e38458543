// A GGUF file as a model: metadata to Config and TokenizerData, tensors to canonical names.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>

#include "base/sniff.h"
#include "model/arrays.h"
#include "model/gguf.h"
#include "model/gguf_metadata.h"
#include "model/gguf_types.h"
#include "model/unused_tensors.h"
#include "model/weight_plan.h"

namespace tersor::model {
namespace {

using gguf::Tensor;

// GGUF's name of a canonical part.
std::string gguf_name(const TensorSpec& spec) {
  static const std::map<std::string, std::string> names = {
      {"embed_tokens", "token_embd"},
      {"norm", "output_norm"},
      {"lm_head", "output"},
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
  };
  const std::string& name = names.at(spec.part);
  return spec.layer < 0 ? name : "blk." + std::to_string(spec.layer) + "." + name;
}

// llama.cpp stores the rows of llama's q and k so that the pairs which rope turns are neighbours: row 2i + j of a head is row
// i + j * size/2 of the original. Gives the source row of each original row.
gguf::RowMap neighbours_to_halves(int rows, int heads) {
  const int size = rows / heads, half = size / 2;
  return [size, half](int row) {
    const int head = row / size, within = row % size;
    return head * size + within % half * 2 + within / half;
  };
}

class Planner {
 public:
  explicit Planner(const std::filesystem::path& path) : file_(std::make_shared<gguf::File>(path)) {}

  LoadPlan plan() {
    LoadPlan result;
    result.data.path = file_->path();
    result.data.format = "gguf";
    result.data.file_bytes = file_->size();
    result.data.config = gguf::read_config(*file_);
    interleaved_ = result.data.config.family == "llama";
    for_each_tensor(result.data.config, [&](const TensorSpec& spec) { result.jobs.push_back(job(spec)); });
    result.data.unused = unused_text(unused(result.data.config));
    // Last, when the tensors have shown that the vocabulary is as large as the file says.
    result.data.tokenizer = gguf::read_tokenizer(*file_);
    return result;
  }

 private:
  const Tensor& find(const std::string& name, const std::vector<uint64_t>& expected, bool dense) {
    const Tensor* tensor = file_->tensor(name);
    if (!tensor)
      file_->fail("tensor " + name + " " + shape_text(expected) + " is missing; the file is incomplete or not of this architecture");
    if (!gguf::loadable(tensor->type))
      file_->fail("tensor " + name + " is " + gguf::type_name(tensor->type) +
                  ", which is not supported yet; supported: " + gguf::kLoadableNames);
    if (dense && !gguf::is_dense(tensor->type))
      file_->fail("tensor " + name + " is " + gguf::type_name(tensor->type) + "; norms and biases must be F32, F16 or BF16");
    check_shape(file_->path().string(), name, tensor->shape, expected);
    used_.insert(name);
    return *tensor;
  }

  LoadPlan::Job job(const TensorSpec& spec) {
    const std::string name = gguf_name(spec);
    const auto rows = static_cast<uint64_t>(spec.rows), cols = static_cast<uint64_t>(spec.cols);
    if (spec.cols == 0) {
      const Tensor& t = find(name + ".weight", {rows}, true);
      return {t.data.size(), [file = file_, &t, spec](ModelData& data) {
                data.vectors.emplace(spec.name(), gguf::make_vector(t.type, t.data, spec.rows, {}));
              }};
    }
    const Tensor& t = find(name + ".weight", {rows, cols}, false);
    const Tensor* bias = spec.bias ? &find(name + ".bias", {rows}, true) : nullptr;
    const gguf::RowMap order = interleaved_ && spec.rotary_heads ? neighbours_to_halves(spec.rows, spec.rotary_heads) : gguf::RowMap();
    const std::string place = file_->path().string() + ": tensor " + name + ".weight";
    return {gguf::loaded_bytes(t.type, rows, cols) + (bias ? bias->data.size() : 0),
            [file = file_, &t, bias, spec, order, place](ModelData& data) {
              auto weight = gguf::make_matrix(t.type, t.data, spec.rows, spec.cols, order, place);
              if (bias) weight.bias = gguf::make_vector(bias->type, bias->data, spec.rows, order);
              release_pages(t.data);
              data.linears.emplace(spec.name(), std::move(weight));
            }};
  }

  // Tensors without a use that change nothing: stored rotations, which follow from the metadata. A model without any of the others would
  // give other results than its makers meant.
  std::vector<std::string> unused(const Config& config) const {
    std::vector<std::string> harmless;
    for (const Tensor& t : file_->tensors()) {
      const std::string name(t.name);
      if (used_.contains(name) || name == "rope_freqs.weight") continue;  // the latter is part of the configuration
      const auto layer = layer_of(name, "blk.");
      if (!layer || *layer >= config.layers || name.find(".attn_rot_embd") == std::string::npos)
        file_->fail("tensor " + printable(name) +
                    why_unused(layer, config.layers, config.family + ".block_count",
                               " is not part of the " + config.family + " architecture as Tersor knows it; this variant is not supported"));
      harmless.push_back(name);
    }
    return harmless;
  }

  std::shared_ptr<gguf::File> file_;
  std::set<std::string> used_;
  bool interleaved_ = false;
};

}  // namespace

LoadPlan plan_gguf(const std::filesystem::path& path) { return Planner(path).plan(); }

}  // namespace tersor::model
