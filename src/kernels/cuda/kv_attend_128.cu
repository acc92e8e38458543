#include "kernels/cuda/kv_attend_variants.cuh"

namespace tersor::kernels::cuda {

AttendVariant attend_variant_128(Code keys, Code values, bool wide, bool many_warps) {
  return find_variant<128>(keys, values, wide, many_warps);
}

}  // namespace tersor::kernels::cuda
