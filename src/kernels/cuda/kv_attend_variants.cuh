// The compiled kernels of one head size. One translation unit a head size includes this, so that they build side by side.
#pragma once

#include "kernels/cuda/kv_attend_kernel.cuh"
#include "kernels/cuda/kv_attend_variants.h"

namespace tersor::kernels::cuda {

template <int D, int NT, int kWarps, Code K, Code V, int kResident = 1>
AttendVariant make_variant() {
  using S = AttendShape<D, NT, kWarps, K, V, kResident>;
  return {reinterpret_cast<const void*>(&attend_kernel<S>), kWarps, NT, S::kShared, kResident};
}

template <int D, Code K, Code V>
AttendVariant pick_variant(AttendUse use) {
  constexpr int kWarps = D == 256 && (K == Code::affine8 || V == Code::affine8) ? 4 : 8;
  constexpr bool kSmall = K != Code::affine8 && V != Code::affine8;
  if constexpr (D <= 128) {
    if (use.wide) return make_variant<D, 2, kWarps, K, V>();
    if constexpr (D == 128 && kSmall && K != Code::full) {
      if (use.many_blocks) return make_variant<D, 1, kWarps, K, V, 2>();
      if (use.long_shares) return make_variant<D, 1, 16, K, V>();
    }
    return make_variant < D, 1, kWarps, K, V, D <= 64 && kSmall ? 2 : 1 > ();
  }
  return make_variant<D, 1, kWarps, K, V>();
}

template <class F>
AttendVariant with_turbo(Code code, const F& f) {
  switch (code) {
    case Code::turbo1: return f.template operator()<Code::turbo1>();
    case Code::turbo2: return f.template operator()<Code::turbo2>();
    case Code::turbo3: return f.template operator()<Code::turbo3>();
    case Code::turbo4: return f.template operator()<Code::turbo4>();
    default: return {};
  }
}
template <class F>
AttendVariant with_affine(Code code, const F& f) {
  switch (code) {
    case Code::affine2: return f.template operator()<Code::affine2>();
    case Code::affine4: return f.template operator()<Code::affine4>();
    case Code::affine8: return f.template operator()<Code::affine8>();
    default: return {};
  }
}

/// Keys of 5 and 6 bits with values of 4 bits and more; in translation units of their own.
template <int D>
AttendVariant find_wide_variant(Code keys, Code values, AttendUse use) {
  const auto with_values = [&]<Code K>() -> AttendVariant {
    switch (values) {
      case Code::turbo4: return pick_variant<D, K, Code::turbo4>(use);
      case Code::turbo5: return pick_variant<D, K, Code::turbo5>(use);
      case Code::turbo6:
        if constexpr (K == Code::turbo6) return pick_variant<D, K, Code::turbo6>(use);
        return {};
      default: return {};
    }
  };
  return keys == Code::turbo6 ? with_values.template operator()<Code::turbo6>() : with_values.template operator()<Code::turbo5>();
}

/// Keys and values of one family, of any widths.
template <int D>
AttendVariant find_variant(Code keys, Code values, AttendUse use) {
  if (keys == Code::full && values == Code::full) return pick_variant<D, Code::full, Code::full>(use);
  if (is_affine(keys))
    return with_affine(keys, [&]<Code K>() { return with_affine(values, [&]<Code V>() { return pick_variant<D, K, V>(use); }); });
  return with_turbo(keys, [&]<Code K>() { return with_turbo(values, [&]<Code V>() { return pick_variant<D, K, V>(use); }); });
}

}  // namespace tersor::kernels::cuda
