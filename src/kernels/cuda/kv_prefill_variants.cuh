// The prefill kernels of one head size. One translation unit a head size includes this.
#pragma once

#include "kernels/cuda/kv_prefill_kernel.cuh"
#include "kernels/cuda/kv_prefill_variants.h"

namespace tersor::kernels::cuda {

template <class S>
PrefillVariant make_prefill_variant() {
  return {reinterpret_cast<const void*>(&prefill_kernel<S>), S::kRows, S::kThreads, S::kShared};
}

/// A `full` cache's numbers are operands as they are. keys: of one kind with the values; wide values have wide keys.
template <int D>
PrefillVariant find_prefill_variant(Code keys, Number full) {
  if (is_affine(keys)) return make_prefill_variant<PrefillShape<D, __half, PrefillKind::affine>>();
  if (is_wide(keys)) return make_prefill_variant<PrefillShape<D, __half, PrefillKind::wide>>();
  if (keys != Code::full) return make_prefill_variant<PrefillShape<D, __half, PrefillKind::turboquant>>();
  return full == Number::f16 ? make_prefill_variant<PrefillShape<D, __half, PrefillKind::full>>()
                             : make_prefill_variant<PrefillShape<D, __nv_bfloat16, PrefillKind::full>>();
}

}  // namespace tersor::kernels::cuda
