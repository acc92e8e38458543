// GGUF's tensor types, and how the ones Tersor runs become MLX arrays.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tersor/ops.h"

namespace tersor::model::gguf {

namespace mx = mlx::core;

/// Elements are stored in blocks of `block` elements and `bytes` bytes, along the innermost dimension.
struct TensorType {
  uint32_t id;
  const char* name;
  uint32_t block, bytes;
};
/// Null when the id is not known.
const TensorType* find_type(uint32_t id);
std::string type_name(uint32_t id);  // "Q4_1", or "type 57"

/// Whether load() can use tensors of this type, and the list of those it can.
bool loadable(uint32_t id);
bool is_dense(uint32_t id);
inline constexpr const char* kLoadableNames = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, MXFP4";

/// Bytes of the arrays that make_matrix() gives.
uint64_t loaded_bytes(uint32_t id, uint64_t rows, uint64_t cols);

/// Source row of each row of the result.
using RowMap = std::function<int(int)>;

/// A matrix [rows, cols] of a loadable type. Dense types stay as they are. Quantised ones become MLX's affine form, group 32, where
/// a value is scale * code + bias:
///   Q4_0 (f16 d, 32 codes): scale d, bias -8 d          Q4_1 (f16 d, f16 m, 32 codes): scale d, bias m
///   Q8_0 (f16 d, 32 int8): codes + 128, scale d, bias -128 d
/// All three are exact in f16. MXFP4 (e8m0 d, 32 e2m1 codes) becomes mxfp4 with the same scales and codes. `place` stands in errors: a
/// scale that is not finite, or whose bias would not be.
ops::LinearWeight make_matrix(uint32_t id, std::span<const std::byte> data, int rows, int cols, const RowMap& source_row,
                              const std::string& place);
/// A vector of a dense type.
mx::array make_vector(uint32_t id, std::span<const std::byte> data, int size, const RowMap& source);

}  // namespace tersor::model::gguf
