#include "kernels/cuda/kv_attend_variants.cuh"

namespace tersor::kernels::cuda {

AttendVariant attend_wide_variant_128(Code keys, Code values, AttendUse use) { return find_wide_variant<128>(keys, values, use); }

}  // namespace tersor::kernels::cuda
