// Cache formats and rows as the kernels take them.
#pragma once

#include <algorithm>

#include "kernels/cuda/kv_codec.h"
#include "ops/cuda/encoder.h"

namespace tersor::ops::cuda {

inline kernels::cuda::Number number_of(mx::Dtype type) {
  using kernels::cuda::Number;
  return type == mx::float16 ? Number::f16 : type == mx::bfloat16 ? Number::bf16 : Number::f32;
}
inline kernels::cuda::Number number_of(Dtype type) {
  using kernels::cuda::Number;
  return type == Dtype::f16 ? Number::f16 : type == Dtype::bf16 ? Number::bf16 : Number::f32;
}

inline kernels::cuda::Rows rows_on_device(const mx::array& x, const RowShape& shape) {
  const auto& strides = x.strides();
  kernels::cuda::Rows rows{mx::gpu_ptr<char>(x), strides[0], 0, 0, strides.back(), number_of(x.dtype())};
  rows.head_stride = shape.tokens_major ? shape.dim * strides[2] : strides[1];
  rows.token_stride = shape.tokens_major ? strides[1] : strides[2];
  return rows;
}

/// A format's codecs and rotations, made once.
struct PreparedFormat {
  kernels::cuda::Code codes[2];
  kernels::cuda::Levels levels[2];
  kernels::cuda::RotationBits rotations[2];
};
const PreparedFormat& prepared(const KvFormat& format);

/// Positions and bounds beyond what a cache can hold are all alike.
inline int clamped(int64_t position) {
  constexpr int64_t kFar = int64_t{1} << 29;
  return static_cast<int>(std::clamp(position, -kFar, kFar));
}

}  // namespace tersor::ops::cuda
