// The one symbol of the library.
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_attend.h"
#include "ops/cuda/kv_params.h"

namespace tersor::ops::cuda {
namespace {

bool kv_supports(const codec::Spec& keys, const codec::Spec& values, int head_dim, Dtype full) {
  if (full == Dtype::f32) return false;  // window and sinks are kept in 16-bit numbers
  const auto code = [&](const codec::Spec& spec, codec::Role role) -> std::optional<kernels::cuda::Code> {
    try {
      return kernels::cuda::code_of(*codec::Codec::make(spec, role, head_dim, full));
    } catch (const Error&) { return std::nullopt; }  // the codec does not have this head size; the cache says so itself
  };
  const auto k = code(keys, codec::Role::keys), v = code(values, codec::Role::values);
  return k && v && kernels::cuda::append_supports(*k, head_dim) && kernels::cuda::append_supports(*v, head_dim) &&
         kernels::cuda::attend_supports(*k, *v, head_dim);
}

constexpr GpuPlugin kPlugin{kGpuPluginVersion,
                            "cuda",
                            kv_supports,
                            kv_append,
                            kv_attend,
                            kernels::cuda::kMaxSegments,
                            linear_supports,
                            linear_pack,
                            linear,
                            feed_forward,
                            rms_norm,
                            rope,
                            embed,
                            argmax,
                            chain_begin,
                            chain_other,
                            chain_keep,
                            chain_end};

}  // namespace
}  // namespace tersor::ops::cuda

extern "C" __attribute__((visibility("default"))) const tersor::ops::GpuPlugin* tersor_gpu_plugin() { return &tersor::ops::cuda::kPlugin; }
