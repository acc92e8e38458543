// Shapes and strides of queries, keys and values in their two arrangements.
#pragma once

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>

#include <optional>
#include <string>

#include "kernels/cpu/kv_rows.h"
#include "ops/contiguous.h"
#include "tersor/ops.h"

namespace tersor::ops {

/// Sizes of a [B, L, H * D] (tokens major) or [B, H, L, D] (heads major) array.
struct RowShape {
  int64_t batch, heads, tokens, dim;
  bool tokens_major;
  /// Throws std::invalid_argument when the array is neither. heads and dim are what the cache expects; heads = 0: any multiple.
  static RowShape of(const mx::array& x, int64_t heads, int64_t dim, const std::string& op, const std::string& name);
  mx::Shape with_dim(int64_t dim) const;  // the same arrangement, another head size
};

/// For eval: rows of an evaluated array. Its last axis must be contiguous (see contiguous_rows).
kernels::KvRows rows_of(const mx::array& x, const RowShape& shape);

/// For eval: x itself, or when its last axis is strided a row-contiguous array that the stream fills before the next dispatch.
mx::array contiguous_rows(const mx::array& x, mx::cpu::CommandEncoder& encoder);

Dtype dtype_of(const mx::array& x, const std::string& op);  // throws std::invalid_argument unless f32, f16 or bf16
mx::Dtype mlx_dtype(Dtype type);
inline Dtype dtype_of_mlx(mx::Dtype type) { return type == mx::float16 ? Dtype::f16 : type == mx::bfloat16 ? Dtype::bf16 : Dtype::f32; }

}  // namespace tersor::ops
