#include "kernels/cuda/kv_prefill_variants.cuh"

namespace tersor::kernels::cuda {

PrefillVariant prefill_variant_96(Code keys, Number full) { return find_prefill_variant<96>(keys, full); }

}  // namespace tersor::kernels::cuda
