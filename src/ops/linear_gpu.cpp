#include "ops/linear_gpu.h"

#include <mlx/device.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "ops/gpu_plugin.h"
#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

// Evaluated, contiguous, in the type they are stored from.
LinearWeight prepared(const LinearWeight& w, bool widen) {
  LinearWeight ready = w;
  if (widen) ready.scales = mx::astype(*w.scales, mx::float32), ready.biases = mx::astype(*w.biases, mx::float32);
  ready.weight = mx::contiguous(w.weight), ready.scales = mx::contiguous(*ready.scales), ready.biases = mx::contiguous(*ready.biases);
  mx::eval({ready.weight, *ready.scales, *ready.biases});
  return ready;
}

bool alike(std::span<LinearWeight* const> weights) {
  const LinearWeight& first = *weights[0];
  return std::all_of(weights.begin(), weights.end(), [&](const LinearWeight* w) {
    return w->bits == first.bits && w->group == first.group && w->in_features() == first.in_features();
  });
}

}  // namespace

bool gpu_takes_rows(const mx::array& x, const LinearWeight& weight) {
  constexpr size_t kDenseRows = 16;
  if (weight.packed || mx::default_device() != mx::Device::gpu) return true;
  return weight.bits == 0 && x.size() <= kDenseRows * static_cast<size_t>(x.shape(-1));
}

bool gpu_takes(Activation activation) { return activation == Activation::silu || mx::default_device() != mx::Device::gpu; }

bool gpu_linear_supports(std::string_view variant, Dtype x) {
  const GpuPlugin* plugin = gpu_plugin();
  if (!plugin) return false;
  if (variant == "f16" || variant == "bf16") return plugin->linear_supports(0, 0, variant == "f16" ? Dtype::f16 : Dtype::bf16, x);
  int bits = 0, group = 0, end = 0;
  const std::string text(variant);
  if (std::sscanf(text.c_str(), "affine:%d,group=%d,gpu%n", &bits, &group, &end) != 2 || static_cast<size_t>(end) != text.size())
    return false;
  return plugin->linear_supports(bits, group, x, x);
}

bool LinearPacker::applies_on_gpu(Policy policy) {
  return policy != Policy::forbid && mx::default_device() == mx::Device::gpu && gpu_plugin() != nullptr;
}

bool LinearPacker::takes_on_gpu(const LinearWeight& w, mx::Dtype x) {
  return w.bits && w.coding == Coding::affine && !w.packed && gpu_plugin() &&
         gpu_plugin()->linear_supports(w.bits, w.group, dtype_of_mlx(x), dtype_of_mlx(x));
}

void LinearPacker::pack_on_gpu(std::span<LinearWeight* const> weights, bool paired, mx::Dtype x) {
  for (const LinearWeight* w : weights)
    if (!takes_on_gpu(*w, x)) throw std::invalid_argument("[LinearPacker] the GPU has no kernels for the weight " + w->str());
  if (!alike(weights) || (paired && weights[0]->out_features() != weights[1]->out_features())) {
    if (paired) throw std::invalid_argument("[LinearPacker] gate and up differ in size or quantisation");
    for (LinearWeight* const& w : weights) pack_on_gpu({&w, 1}, false, x);
    return;
  }
  const bool widen = std::any_of(weights.begin(), weights.end(),
                                 [&](const LinearWeight* w) { return w->scales->dtype() != x || w->biases->dtype() != x; });
  std::vector<LinearWeight> ready;
  for (const LinearWeight* w : weights) ready.push_back(prepared(*w, widen));
  GpuPackCall call{{}, paired, widen ? Dtype::f32 : dtype_of_mlx(x)};
  for (const LinearWeight& w : ready) call.weights.push_back(&w);
  const GpuPacked packed = gpu_plugin()->linear_pack(call);
  size_t rows = 0;
  for (const LinearWeight& w : ready) rows += static_cast<size_t>(w.out_features());
  for (size_t i = 0; i < weights.size(); ++i) {
    LinearWeight& w = *weights[i];
    const int out = w.out_features(), in = w.in_features();
    const size_t share = packed.bytes / rows * static_cast<size_t>(out);
    w.weight = mx::array({}, mx::uint8), w.scales.reset(), w.biases.reset();
    w.packed =
        LinearWeight::Packed{out, in, call.scale_type, false, {packed.data, packed.data.get() + packed.offsets[i]}, true, paired, share};
  }
  mx::clear_cache();  // the originals' memory
}

}  // namespace tersor::ops
