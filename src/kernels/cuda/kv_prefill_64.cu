#include "kernels/cuda/kv_prefill_variants.cuh"

namespace tersor::kernels::cuda {

PrefillVariant prefill_variant_64(Code keys, Number full) { return find_prefill_variant<64>(keys, full); }

}  // namespace tersor::kernels::cuda
