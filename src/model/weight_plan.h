// The tensors a model of the llama family needs, and the plan to load them: checked first, sized next, loaded last.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {

/// One tensor a configuration needs. `part` is the name inside its layer ("self_attn.q_proj"), or of the whole model ("lm_head").
struct TensorSpec {
  std::string part;
  int layer = -1;            // -1: outside the layers
  int rows = 0, cols = 0;    // cols 0: a vector of `rows`
  bool bias = false;         // a bias [rows] belongs to it
  int rotary_heads = 0;      // of query and key projections: heads whose rows are turned by rope
  std::string name() const;  // canonical: "model.layers.0.self_attn.q_proj"
};

/// Calls f for every tensor the configuration needs, layers last. The one place that says what a family consists of.
void for_each_tensor(const Config& config, const std::function<void(const TensorSpec&)>& f);

/// Checks sizes and ratios of a configuration and that its layers could be in a file of `tensors` tensors.
/// `place` stands in errors: the file that the configuration came from.
void check_config(const Config& config, uint64_t tensors, const std::string& place);

/// A model that has been checked from headers alone, and what is left to do. Files stay mapped as long as the plan lives.
struct LoadPlan {
  ModelData data;  // all but the weights
  struct Job {
    uint64_t bytes = 0;  // of the arrays it makes
    std::function<void(ModelData&)> run;
  };
  std::vector<Job> jobs;
  uint64_t bytes() const;
};

/// Throws Error when the weights would take more than nine tenths of the memory there is.
void check_memory(const LoadPlan& plan);
/// Runs the jobs in order. pack: packs each weight for this precision as soon as it is there.
ModelData run_plan(LoadPlan plan, std::optional<ops::Precision> pack);

/// Plans for a .gguf file and for a folder. Throws Error naming file, place and remedy.
LoadPlan plan_gguf(const std::filesystem::path& path);
LoadPlan plan_folder(const std::filesystem::path& path);
/// The plan for either, by what stands at the path.
LoadPlan plan_model(const std::filesystem::path& path);

/// Digests over names, shapes, types and samples of the weights, taken one by one while their originals are there.
class WeightDigests {
 public:
  /// The linear weights that were not seen before.
  void add_new(const std::map<std::string, ops::LinearWeight>& linears);
  std::string str(const ModelData& data) const;  // with biases and vectors

 private:
  std::map<std::string, std::string> linears_;
};

/// Facts that must agree before a saved cache is used: sizes and the weights' digest. The same weights give the same identity from
/// either format, packed or not.
cache::Identity identity_of(const ModelData& data, const WeightDigests& digests);

/// "found [2, 3], expected [2, 4]" as an Error naming file and tensor, unless the shapes are equal.
void check_shape(const std::string& place, const std::string& tensor, const std::vector<uint64_t>& found,
                 const std::vector<uint64_t>& expected);

/// Adds ids to the tokens that end a reply; ascending, each once.
void add_end_tokens(text::TokenizerData& tokenizer, const std::vector<int32_t>& ids);

}  // namespace tersor::model
