// What kv_prefill.cu knows about the kernels that other translation units compile.
#pragma once

#include "kernels/cuda/kv_prefill.h"

namespace tersor::kernels::cuda {

struct PrefillVariant {
  const void* function = nullptr;
  int rows = 0, threads = 0, shared_bytes = 0;
};

PrefillVariant prefill_variant_64(Code keys, Number full);
PrefillVariant prefill_variant_80(Code keys, Number full);
PrefillVariant prefill_variant_96(Code keys, Number full);
PrefillVariant prefill_variant_128(Code keys, Number full);

}  // namespace tersor::kernels::cuda
