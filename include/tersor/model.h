// Model files and the transformer that runs them.
#pragma once

#include <mlx/array.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tersor/cache.h"
#include "tersor/ops.h"
#include "tersor/text.h"

namespace tersor::model {

namespace mx = mlx::core;

/// One transformer with switches: what the llama family (SmolLM2, Llama 3.x, Mistral, Qwen2, Qwen3) needs.
struct Config {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3"
  int layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, context = 0;
  float norm_eps = 1e-5f;
  float rope_theta = 10000.0f;
  int rotary_dims = 0;  // head_dim unless partial
  struct Llama3Scaling {
    float factor, low_freq_factor, high_freq_factor;
    int original_context;
  };
  std::optional<Llama3Scaling> llama3_scaling;
  float linear_rope_factor = 1.0f;
  std::vector<float> rope_freq_factors;  // [rotary/2] divisors, from a GGUF's rope_freqs.weight; or empty
  bool tied_head = false;
  bool qk_norm = false;  // Qwen3
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  int sliding_window = 0;  // 0: none
  Activation activation = Activation::silu;
};

/// ModelData::format of models that were made and not loaded.
inline constexpr std::string_view kRandomFormat = "random";

/// What a model file holds, loaded: configuration, weights by canonical name, tokenizer data.
/// Canonical names are those of Hugging Face ("model.layers.0.self_attn.q_proj", "model.embed_tokens", "model.norm", "lm_head").
struct ModelData {
  Config config;
  std::map<std::string, ops::LinearWeight> linears;
  std::map<std::string, mx::array> vectors;  // norms
  text::TokenizerData tokenizer;
  cache::Identity identity;  // for saved caches: family, sizes, a digest of the weights
  std::filesystem::path path;
  std::string format;  // "gguf", "safetensors", or kRandomFormat: random weights and no tokenizer
  uint64_t file_bytes = 0;
  /// Tensors of the file that are not in use, named in words; they change nothing, or loading would have been refused. Mostly empty.
  std::string unused;
};

/// A .gguf file, or a folder with config.json and *.safetensors. Checks every size, offset and count against the file
/// before allocating. Throws Error naming file, place and remedy.
/// pack: weights are laid out for the kernels of this precision one by one as they are read (ops::LinearPacker), so that originals and
/// packed copies are never in memory together; such data is for a Transformer of the same precision alone.
ModelData load(const std::filesystem::path& path, std::optional<ops::Precision> pack = {});
/// The tokenizer of what was loaded, made of data.tokenizer, which it takes. Throws Error naming the file when its parts do not fit
/// together.
text::Tokenizer take_tokenizer(ModelData& data);
/// Rows for `tersor inspect`: key, value; reads headers only.
struct Inspection {
  std::vector<std::pair<std::string, std::string>> facts;
  struct Tensor {
    std::string name, type, shape;
    uint64_t bytes;
  };
  std::vector<Tensor> tensors;
};
Inspection inspect(const std::filesystem::path& path);

/// The model ready to run. Activations are float32 on the CPU; on a GPU they have the type of the weights' scales, f16 or bf16, where all
/// weights have fast kernels.
class Transformer {
 public:
  /// Precision holds for linear layers and for attention over the caches it makes; policy forbid and dense weights always compute exactly.
  Transformer(ModelData data, ops::Policy policy, ops::Precision precision = ops::Precision::int16);
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  const Config& config() const;
  ops::Precision precision() const;
  const cache::Identity& identity() const;
  /// Both throw Error for a model of random weights, which has no tokenizer.
  const text::Tokenizer& tokenizer() const;
  text::ChatFormat chat_format() const;

  /// A cache that fits this model. full_dtype: what `full` codecs, windows and sinks store.
  cache::KvCache make_cache(const cache::KvSpec& spec, Dtype full_dtype = Dtype::f16,
                            const cache::ModelCalibration& calibration = {}) const;

  /// Appends the tokens to the cache and returns logits as float32: [L, vocab] or, with last_only, [1, vocab]. Lazy.
  /// Throws Error when a token is outside the vocabulary or the context would be exceeded.
  mx::array forward(std::span<const int32_t> tokens, cache::KvCache& cache, bool last_only = true) const;
  /// Whether next_token works: greedy decoding whose token ids stay on the device, so that the host can build the next step meanwhile.
  bool runs_ahead() const;
  /// Appends the token (int32 [1], perhaps not evaluated yet) and returns the likeliest of the first `choices` ids after it, int32 [1];
  /// -1 where logits are not finite. Lazy: evaluate it asynchronously before the next call.
  mx::array next_token(const mx::array& token, cache::KvCache& cache, int choices) const;
  /// The same as forward in chunks, evaluated; progress is called with the tokens done so far. Returns the last row [1, vocab].
  mx::array prefill(std::span<const int32_t> tokens, cache::KvCache& cache, int chunk = 512,
                    const std::function<void(int64_t)>& progress = {}) const;

  std::vector<ops::Choice> choices() const;
  uint64_t weight_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// How the next token is picked.
struct Sampling {
  float temperature = 0;         // 0: greedy
  int top_k = 0;                 // 0: off
  float top_p = 1;               // 1: off
  float min_p = 0;               // 0: off
  float repetition_penalty = 1;  // 1: off; over the last `repetition_window` tokens
  int repetition_window = 64;
  uint64_t seed = 0;
};

/// Deterministic for a given seed. logits: vocab floats.
class Sampler {
 public:
  explicit Sampler(const Sampling& sampling);  // throws Error for values out of range
  int32_t pick(std::span<const float> logits, std::span<const int32_t> history);

 private:
  Sampling sampling_;
  uint64_t state_;
};

struct GenerateOptions {
  int max_tokens = 256;
  Sampling sampling;
  std::vector<std::string> stop;  // stop strings; the text ends before the first one
  bool ignore_end = false;        // go on past end tokens (benchmarks)
  int prefill_chunk = 512;
  std::function<void(std::string_view)> on_text;  // whole UTF-8 characters, as they come
  std::function<void(int64_t done, int64_t total)> on_prefill;
  std::function<bool()> stop_requested;  // asked after every token; true ends the reply there
};

struct Generation {
  std::string text;
  std::vector<int32_t> tokens;  // generated, end token excluded
  std::string stop_reason;      // "end", "length", "stop", "context", "interrupted"
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  double prefill_tok_s() const;
  double decode_tok_s() const;  // generated tokens after the first over their time
};

/// Continues `prompt` (token ids, not empty) on a cache that may already hold earlier tokens.
Generation generate(const Transformer& model, cache::KvCache& cache, std::span<const int32_t> prompt, const GenerateOptions& options);

/// How far two rows of logits are apart, in the one way every tool uses.
struct Fidelity {
  int64_t positions = 0;
  double perplexity = 0, perplexity_full = 0;
  double kl_mean = 0, kl_p99 = 0, kl_max = 0;
  double top1_agreement = 0;
  double logit_error_mean = 0, logit_error_max = 0;
  /// The strict policy: the same likeliest token at every position, the largest KL and the logit errors within these.
  static constexpr double kStrictKlMax = 0.001, kStrictLogitErrorMean = 0.05, kStrictLogitErrorMax = 0.5;
  /// The fields above that break it, by name.
  std::vector<std::string> strict_failed() const;
  bool strict_passed() const { return strict_failed().empty(); }
};
/// Runs the tokens through the model twice, with a full-precision cache and with `spec`, in chunks of `chunk` positions
/// (memory for logits stays bounded), and compares the logits at every position. calibrations: one a spec, or none at all.
/// stop_requested is asked after every chunk; true ends the evaluation there, with what was seen so far.
struct Evaluation {
  Fidelity fidelity;
  cache::KvSpec spec;
  uint64_t kv_bytes = 0, kv_bytes_full = 0;
  int64_t tokens = 0;
  std::vector<cache::LayerReport> layers;
};
std::vector<Evaluation> evaluate(const Transformer& model, std::span<const int32_t> tokens, std::span<const cache::KvSpec> specs,
                                 int chunk = 256, Dtype full_dtype = Dtype::f16,
                                 const std::function<void(int64_t done, int64_t total)>& progress = {},
                                 const std::function<bool()>& stop_requested = {},
                                 std::span<const cache::ModelCalibration> calibrations = {});

}  // namespace tersor::model
