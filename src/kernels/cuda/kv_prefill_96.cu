#include "kernels/cuda/kv_prefill_variants.cuh"

namespace tersor::kernels::cuda {

PrefillVariant prefill_variant_96(bool coded, Number full) { return find_prefill_variant<96>(coded, full); }

}  // namespace tersor::kernels::cuda
