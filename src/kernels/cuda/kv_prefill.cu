// The choice of a prefill kernel.
#include "kernels/cuda/kv_prefill.h"

#include "kernels/cuda/kv_prefill_variants.h"

namespace tersor::kernels::cuda {
namespace {

PrefillVariant variant_for(Code keys, Number full, int dim) {
  switch (dim) {
    case 64: return prefill_variant_64(keys, full);
    case 80: return prefill_variant_80(keys, full);
    case 96: return prefill_variant_96(keys, full);
    case 128: return prefill_variant_128(keys, full);
    default: return {};
  }
}

long long blocks_of(const AttendParams& p, int rows) { return (static_cast<long long>(p.group) * p.rows + rows - 1) / rows; }

}  // namespace

Launch prefill_any(PrefillParams& params, Code keys, Code values, int dim) {
  const AttendParams& p = params.attend;
  Launch launch;
  if ((keys == Code::full) != (values == Code::full) || is_affine(keys) != is_affine(values)) return launch;
  if (is_wide(keys) ? values < Code::turbo4 : is_wide(values)) return launch;
  // bfloat16 operands would take digits from wider queries.
  if (keys == Code::full && p.full_type == Number::bf16 && p.queries.type != Number::bf16) return launch;
  const PrefillVariant variant = variant_for(keys, p.full_type, dim);
  if (variant.function == nullptr) return launch;
  params.keys = keys, params.values = values;
  launch.function = variant.function;
  launch.grid = dim3(static_cast<unsigned>(p.kv_heads * p.batch), static_cast<unsigned>(blocks_of(p, variant.rows)));
  launch.block = dim3(static_cast<unsigned>(variant.threads));
  launch.shared_bytes = static_cast<unsigned>(variant.shared_bytes);
  return launch;
}

Launch prefill_plan(PrefillParams& params, Code keys, Code values, int dim, int processors) {
  constexpr int kFewRows = 17;
  constexpr double kFaster = 3.5;  // than the kernel for few rows, which fills the device with any number of rows (measured at D = 128)
  const AttendParams& p = params.attend;
  if (p.rows < kFewRows) return {};
  Launch launch = prefill_any(params, keys, values, dim);
  if (launch.function == nullptr || launch.grid.y > 65535u) return {};
  if (kFaster * launch.grid.x * launch.grid.y < processors) return {};
  return launch;
}

}  // namespace tersor::kernels::cuda
