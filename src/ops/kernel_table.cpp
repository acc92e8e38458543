// The one table of fast kernels, and the choice between them and composed MLX operations.
#include <fnmatch.h>
#include <mlx/device.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "kernels/cpu/simd_target.h"
#include "ops/gpu_plugin.h"
#include "ops/kv_rows.h"
#include "ops/linear_gpu.h"
#include "tersor/ops.h"

namespace tersor::ops {
namespace {

constexpr std::string_view kComposed = "mlx (composed)";

bool any_head(int) { return true; }

struct Row {
  std::string_view op;
  std::string_view variants;  // shell patterns, separated by |; an empty one matches the empty variant
  bool (*head_size)(int);     // of ops that have heads
  std::string_view head_sizes;
  std::string_view kernel;
  Precision precision = Precision::exact;
};

constexpr std::string_view kWeights = "f32|f16|bf16|affine:[234568],group=32|affine:[234568],group=64|affine:[234568],group=128";
constexpr std::string_view kPackedWeights =
    "f32,packed|f16,packed|bf16,packed|affine:[234568],group=32,packed|affine:[234568],group=64,packed|affine:[234568],group=128,packed|"
    "mxfp4,packed|mxfp8,packed";
constexpr std::string_view kIntegerWeights =
    "affine:[234568],group=32,int16|affine:[234568],group=64,int16|affine:[234568],group=128,int16|mxfp4,int16";
constexpr std::string_view kMxWeights = "mxfp4|mxfp8";
constexpr std::string_view kCaches = "full*|affine:*|turboquant*|qjl:*|vecinfer:*|mxfp4*|mxfp8*";
constexpr std::string_view kCachesInIntegers = "*,int16";

// Every CPU kernel takes f32, f16 and bf16.
constexpr Row kCpu[] = {
    {"linear", kPackedWeights, any_head, "", "cpu/linear_packed"},
    {"linear", kIntegerWeights, any_head, "", "cpu/linear_int16", Precision::int16},
    {"embed", kWeights, any_head, "", "cpu/embed"},
    {"embed", kPackedWeights, any_head, "", "cpu/embed"},
    {"embed", kIntegerWeights, any_head, "", "cpu/embed"},
    {"embed", kMxWeights, any_head, "", "cpu/embed"},
    {"rms_norm", "", any_head, "", "cpu/rms_norm"},
    {"rope", "|qk_norm", any_head, "any head size", "cpu/rope"},
    {"kv_append", kCaches, any_head, "any head size", "cpu/kv_append"},
    {"kv_attend", kCachesInIntegers, any_head, "any head size", "cpu/kv_attend_int16", Precision::int16},
    {"kv_attend", kCaches, any_head, "any head size", "cpu/kv_attend"},
};

bool matches(std::string_view patterns, const std::string& variant) {
  for (size_t begin = 0; begin <= patterns.size();) {
    const size_t end = std::min(patterns.find('|', begin), patterns.size());
    if (fnmatch(std::string(patterns.substr(begin, end - begin)).c_str(), variant.c_str(), 0) == 0) return true;
    begin = end + 1;
  }
  return false;
}

std::string short_name(mx::Dtype dtype) {
  if (dtype == mx::float32) return "f32";
  if (dtype == mx::float16) return "f16";
  if (dtype == mx::bfloat16) return "bf16";
  std::ostringstream text;
  text << dtype;
  return text.str();
}

std::string problem_of(std::string_view variant, mx::Dtype dtype, int head_dim) {
  std::string text(variant);
  if (!text.empty()) text += ' ';
  text += short_name(dtype);
  if (head_dim > 0) text += " D=" + std::to_string(head_dim);
  return text;
}

std::string with_target(std::string_view kernel) { return std::string(kernel) + " [" + kernels::simd_target_name() + "]"; }

// Fills kernel, fast and reason from the CPU table.
void look_up(Choice& choice, std::string_view variant, mx::Dtype dtype, int head_dim) {
  const bool floating = dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
  bool known = false;
  for (const Row& row : kCpu) {
    if (row.op != choice.op) continue;
    known = true;
    if (!floating || !matches(row.variants, std::string(variant)) || !row.head_size(head_dim)) continue;
    choice.kernel = with_target(row.kernel);
    choice.fast = true;
    choice.precision = row.precision;
    choice.reason = "the CPU kernel for this machine";
    return;
  }
  if (!known) throw std::invalid_argument("[choose] there is no op \"" + choice.op + "\"");
  choice.reason = "no CPU kernel for " + choice.op + " of " + choice.problem;
  if (choice.op == "linear" && variant.find(",packed") == variant.npos && variant.find(",int16") == variant.npos)
    choice.reason += ": its kernels take weights from LinearPacker";
}

// Ops besides those of the caches, whose GPU kernels take 16-bit activations.
bool gpu_has(const std::string& op, std::string_view variant, mx::Dtype dtype, int head_dim) {
  if (dtype != mx::float16 && dtype != mx::bfloat16) return false;
  constexpr int kMostHead = 512;
  if (op == "linear") return gpu_linear_supports(variant, dtype_of_mlx(dtype));
  if (op == "embed") return matches("f32|f16|bf16", std::string(variant)) || gpu_linear_supports(variant, dtype_of_mlx(dtype));
  if (op == "rope") return head_dim % 2 == 0 && head_dim <= kMostHead;
  return op == "rms_norm";
}

// The same for MLX's GPU backend, whose kernels come in a plug-in.
void look_up_gpu(Choice& choice, std::string_view variant, mx::Dtype dtype, int head_dim, int value_dim) {
  const GpuPlugin* plugin = gpu_plugin();
  if (!plugin) {
    choice.reason = "the default device is a GPU and there are no kernels for it: " + gpu_plugin_problem();
    return;
  }
  const bool floating = dtype == mx::float32 || dtype == mx::float16 || dtype == mx::bfloat16;
  choice.fast = gpu_has(choice.op, variant, dtype, head_dim);
  if (floating && (value_dim == 0 || value_dim == head_dim) && (choice.op == "kv_append" || choice.op == "kv_attend")) {
    const size_t slash = std::min(variant.find('/'), variant.size());
    const auto keys = codec::Spec::parse(variant.substr(0, slash));
    const auto values = slash == variant.size() ? keys : codec::Spec::parse(variant.substr(slash + 1));
    choice.fast = plugin->kv_supports(keys, values, head_dim, dtype_of_mlx(dtype));
  }
  if (choice.fast)
    choice.kernel = std::string(plugin->name) + "/" + choice.op, choice.reason = "the GPU kernel";
  else
    choice.reason = "no " + std::string(plugin->name) + " kernel for " + choice.op + " of " + choice.problem;
}

}  // namespace

Policy parse_policy(std::string_view text) {
  if (text == "auto" || text == "automatic") return Policy::automatic;
  if (text == "require") return Policy::require;
  if (text == "forbid") return Policy::forbid;
  throw Error("kernel policy \"" + std::string(text) + "\" is unknown: use auto, require or forbid");
}

std::string_view name_of(Policy policy) {
  switch (policy) {
    case Policy::automatic: return "auto";
    case Policy::require: return "require";
    case Policy::forbid: return "forbid";
  }
  return "auto";
}

Precision parse_precision(std::string_view text) {
  if (text == "int16") return Precision::int16;
  if (text == "exact") return Precision::exact;
  throw Error("precision \"" + std::string(text) + "\" is unknown: use int16 or exact");
}

std::string_view name_of(Precision precision) { return precision == Precision::int16 ? "int16" : "exact"; }

Choice choose(std::string_view op, std::string_view variant, mx::Dtype dtype, int head_dim, Policy policy, int value_dim) {
  kernels::apply_simd_environment();
  Choice choice{std::string(op), problem_of(variant, dtype, head_dim), std::string(kComposed), false, {}};
  if (policy == Policy::forbid) {
    choice.reason = "fast kernels are forbidden (policy forbid)";
    return choice;
  }
  if (mx::default_device() == mx::Device::gpu) {
    look_up_gpu(choice, variant, dtype, head_dim, value_dim);
  } else {
    look_up(choice, variant, dtype, head_dim);
  }
  if (!choice.fast && policy == Policy::require)
    throw Error("no fast kernel can be required: " + choice.reason + "; use policy auto to run composed MLX operations instead");
  return choice;
}

std::vector<Choice> kernel_table() {
  kernels::apply_simd_environment();
  std::vector<Choice> table;
  for (const Row& row : kCpu) {
    std::string problem(row.variants == "" ? "any" : row.variants);
    if (problem.front() == '|') problem = "plain" + problem;
    table.push_back({std::string(row.op), problem + " in f32|f16|bf16", with_target(row.kernel), true, std::string(row.head_sizes)});
  }
  return table;
}

}  // namespace tersor::ops
