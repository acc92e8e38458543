// MLX graph nodes: they check shapes and dtypes and run a fast kernel of this machine, or compose MLX operations.
//
// Arrays are mlx::core arrays, lazily evaluated. Shapes are written [batch, ...]. Every function here throws
// std::invalid_argument with the op's name in front when shapes or dtypes do not fit.
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tersor/base.h"

namespace tersor::ops {

namespace mx = mlx::core;

/// automatic: the best kernel there is; require: Error at construction unless a fast kernel exists; forbid: composed MLX ops.
enum class Policy { automatic, require, forbid };
Policy parse_policy(std::string_view text);  // auto | require | forbid
std::string_view name_of(Policy policy);

/// How linear layers with quantised weights multiply, and attention over compressed caches. exact: codes become floats. int16: sums of
/// products are integer; activations, queries and attention weights become 16-bit integers, a rounding of at most 1/65278 of the largest
/// magnitude among those that share a scale: a weight group's, a query's, those of 64 tokens.
enum class Precision { int16, exact };
Precision parse_precision(std::string_view text);  // int16 | exact
std::string_view name_of(Precision precision);

/// What will run for one op, and why. Goes into every report.
struct Choice {
  std::string op;       // "linear", "attend", ...
  std::string problem;  // what it was asked for, e.g. "affine:4,group=32 f32"
  std::string kernel;   // "cpu/linear (AVX3)" or "mlx (composed)"
  bool fast = false;
  std::string reason;
  Precision precision = Precision::exact;  // of the kernel
};
/// The one answer to "what runs here?": looks (op, variant, dtype, head size) up in the table of the current default device.
/// Throws Error under Policy::require when there is no fast kernel.
/// value_dim: of caches whose values have another head size than their keys.
Choice choose(std::string_view op, std::string_view variant, mx::Dtype dtype, int head_dim, Policy policy, int value_dim = 0);
/// Every row of the kernel table for this machine, for `tersor inspect`.
std::vector<Choice> kernel_table();

/// A weight matrix [out, in] of a linear layer: dense (f32, f16, bf16), or quantised the way MLX packs it: `weight` uint32
/// [out, in * bits / 32] with codes LSB first, `scales` and (of affine codes) `biases` [out, in / group]. mxfp4 has 4 bits, mxfp8 has 8,
/// both groups of 32 and uint8 scales.
struct LinearWeight {
  mx::array weight;
  std::optional<mx::array> scales, biases;
  int bits = 0, group = 0;        // 0: dense
  std::optional<mx::array> bias;  // [out], added to the product

  /// Set by LinearPacker: numbers, or codes, scales and biases, lie at `data` in the order of the kernels for packed weights, the CPU's
  /// or a GPU's, outside MLX's memory; `weight` is empty.
  struct Packed {
    int out, in;
    Dtype type;     // of numbers, or of affine scales and biases
    bool integers;  // multiplied with activations as integers, of Precision::int16
    std::shared_ptr<const uint8_t> data;
    bool gpu = false;      // the device's memory
    bool paired = false;   // gate or up: `data` holds the rows of both
    size_t gpu_bytes = 0;  // this weight's share
    bool operator==(const Packed&) const = default;
  };
  std::optional<Packed> packed = std::nullopt;
  Coding coding = Coding::affine;  // of quantised weights

  int out_features() const { return packed ? packed->out : weight.shape(0); }
  int in_features() const { return packed ? packed->in : bits ? weight.shape(1) * 32 / bits : weight.shape(1); }
  size_t nbytes() const;  // of everything it holds
  /// "affine:4,group=32", "mxfp4" or "f16"; when packed with ",int16", ",packed" (multiplied as floats) or ",gpu" behind it.
  std::string str() const;
};

/// Lays weights out for the kernels (kernels/cpu/linear_packed.h), one after the other in regions of memory on huge pages. Numbers, codes,
/// scales and biases are kept exactly; packed weights keep their region alive.
class LinearPacker {
 public:
  explicit LinearPacker(Precision precision) : precision_(precision) {}
  /// Whether linear layers run on packed weights: on the CPU, unless fast kernels are forbidden.
  static bool applies(Policy policy);
  size_t bytes(const LinearWeight& weight) const;
  /// Evaluates the weight's arrays and returns its packed form; the caller lets go of the old one. Throws std::invalid_argument when
  /// the weight is not what LinearWeight describes or is packed already.
  LinearWeight pack(const LinearWeight& weight);

  /// Whether there are GPU kernels for packed weights; the type that activations then have. Weights of other kinds stay as they are.
  static bool applies_on_gpu(Policy policy);
  static bool takes_on_gpu(const LinearWeight& weight, mx::Dtype x);
  /// Replaces weights that run together (q, k and v; a gate and its up-projection: `paired`) by their packed forms in the device's
  /// memory. Scales of another type than x's are kept as float32.
  static void pack_on_gpu(std::span<LinearWeight* const> weights, bool paired, mx::Dtype x);

 private:
  Precision precision_;
  std::shared_ptr<std::byte> region_;
  size_t size_ = 0, used_ = 0;
  size_t freed_ = 0;  // by callers, since free memory last went back to the system
};

/// An RMS norm that a node applies to its input rows before it multiplies them.
struct RmsNorm {
  mx::array weight;  // [in]
  float eps;
};

/// x [..., in] (normed first, if asked for) times each weight's transpose, plus its bias: one result [..., out] a weight, x read once
/// (q, k, v in one node). Results have x's dtype (f32, f16 or bf16).
std::vector<mx::array> linear(const mx::array& x, std::span<const LinearWeight> weights, const Choice& choice,
                              const std::optional<RmsNorm>& norm = {}, mx::StreamOrDevice s = {});
/// The same of one weight as float32 [rows, out], whatever x's type.
mx::array logits(const mx::array& x, const LinearWeight& weight, const Choice& choice, const RmsNorm& norm, mx::StreamOrDevice s = {});
/// residual + x W^T (+ bias)
mx::array linear_add(const mx::array& x, const LinearWeight& weight, const mx::array& residual, const Choice& choice,
                     mx::StreamOrDevice s = {});
/// activation(x gate^T) * (x up^T), x normed first if asked for
mx::array linear_gated(const mx::array& x, const LinearWeight& gate, const LinearWeight& up, Activation activation, const Choice& choice,
                       const std::optional<RmsNorm>& norm = {}, mx::StreamOrDevice s = {});
/// Rows of the weight for integer ids [...]: result [..., in] in `dtype`. Ids outside the table throw at evaluation; from a GPU's kernel,
/// which the host does not wait for, they come back as NaN.
mx::array embed(const mx::array& ids, const LinearWeight& weight, mx::Dtype dtype, mx::StreamOrDevice s = {});

/// The likeliest id of each row of logits [rows, vocab] among the first `count`: int32 [rows], which embed takes without the host's
/// having seen it. -1 where a logit is NaN or infinite. GPU kernels only (see has_argmax).
mx::array argmax(const mx::array& logits, int count, mx::StreamOrDevice s = {});
bool has_argmax();

/// x / sqrt(mean(x^2) + eps) * weight over the last axis, accumulated in float.
mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, const Choice& choice, mx::StreamOrDevice s = {});

/// Rotary embedding of queries and keys in one node. q [B, L, Hq * D], k [B, L, Hkv * D] (tokens major, as linear gives them).
/// Dimensions i and i + rotary/2 form a pair (MLX traditional = false); the first 2 * inv_freq.size() dimensions turn.
struct RopeParams {
  int head_dim = 0;
  mx::array inv_freq;                       // [rotary / 2] float: angle of pair i at position p is p * inv_freq[i]
  float attention_scale = 1.0f;             // multiplies cos and sin (YaRN); 1 for all families of today
  std::optional<mx::array> q_norm, k_norm;  // [D]: RMS norm of each head before it is turned (Qwen3)
  float norm_eps = 1e-6f;
};
struct QueryKey {
  mx::array q, k;
};
QueryKey rope(const mx::array& q, const mx::array& k, const RopeParams& params, int64_t position, const Choice& choice,
              mx::StreamOrDevice s = {});

struct QueryKeyValue {
  mx::array q, k, v;
};
/// The way into a layer's attention as one node: q, k and v projections of norm(x) [B, L, in], queries and keys turned at positions
/// position, position + 1, ... last_query: only the last position's query, [B, 1, ...]. Falls back to its parts where one of them has no
/// fast kernel.
QueryKeyValue project_qkv(const mx::array& x, const RmsNorm& norm, std::span<const LinearWeight, 3> weights, const RopeParams& params,
                          int64_t position, bool last_query, const Choice& linear_choice, const Choice& rope_choice,
                          mx::StreamOrDevice s = {});

/// What a layer does after attention.
struct FeedForward {
  const LinearWeight& o;
  const RmsNorm& norm;
  const LinearWeight &gate, &up, &down;
  Activation activation = Activation::silu;
};
/// The rest of a layer as one node: h = residual + attended o^T, result h + (activation(norm(h) gate^T) * (norm(h) up^T))
/// down^T.
/// `linear_choice` holds for all four weights; falls back to its parts where it is not fast.
mx::array feed_forward(const mx::array& attended, const mx::array& residual, const FeedForward& layer, const Choice& linear_choice,
                       mx::StreamOrDevice s = {});

/// Options of one attention call over a cache (tersor/cache.h).
struct AttendOptions {
  float scale = 0;                 // multiplies q.k; 0 means 1/sqrt(key_dim)
  bool causal = true;              // query row i of L sees keys up to position tokens - L + i
  int sliding_window = 0;          // > 0: a row at position p sees keys in (p - sliding_window, p]
  float soft_cap = 0;              // > 0: logits become cap * tanh(logits / cap)
  std::optional<mx::array> sinks;  // [Hq] learned sink logits: one more softmax column that carries no value
  std::optional<mx::array> mask;   // broadcastable to [B, Hq, L, tokens]; bool (true = visible) or additive
};

}  // namespace tersor::ops
