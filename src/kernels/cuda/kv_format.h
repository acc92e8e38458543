// What the kernels know about the tiles of a cache (codec/fragment.h) and about the rotation of its vectors.
#pragma once

#include <cstdint>

#include "codec/fragment_wide.h"

namespace tersor::kernels::cuda {

inline constexpr int kMaxHeadDim = 256, kMaxCore = 20;

enum class Number : uint8_t { f16, bf16, f32 };

/// How one side (keys or values) of a tile stores numbers.
enum class Code : uint8_t { full, turbo1, turbo2, turbo3, turbo4, turbo5, turbo6, affine2, affine4, affine8 };
inline constexpr int kAffineGroup = 64;  // the one group size there are affine kernels for

constexpr bool is_affine(Code c) { return c >= Code::affine2; }
/// Turboquant's 5 and 6 bits, whose levels take more than a byte.
constexpr bool is_wide(Code c) { return c == Code::turbo5 || c == Code::turbo6; }
constexpr codec::Packing packing_of(Code c) {
  switch (c) {
    case Code::turbo1: return codec::Packing::sign1;
    case Code::turbo2: return codec::Packing::nibble2;
    case Code::turbo3: return codec::Packing::nibble3;
    case Code::affine2: return codec::Packing::plain2;
    case Code::affine4: return codec::Packing::plain4;
    case Code::affine8: return codec::Packing::plain8;
    default: return codec::Packing::mirror4;
  }
}
constexpr codec::FragmentCode form_of(Code c) { return {packing_of(c), c == Code::turbo6 ? 2 : c == Code::turbo5 ? 1 : 0}; }
constexpr int code_bits(Code c) { return form_of(c).bits(); }
constexpr int scalar_groups(Code c, int dim) { return is_affine(c) ? (dim + kAffineGroup - 1) / kAffineGroup : 1; }
constexpr int scalar_rows(Code c, int dim) { return is_affine(c) ? 2 * scalar_groups(c, dim) : 1; }
constexpr int code_bytes(Code c, int dim) { return dim * 8 * code_bits(c); }
constexpr int scalar_bytes(Code c, int dim) { return scalar_rows(c, dim) * codec::kFragmentTokens * 2; }
/// Bytes of a tile's keys or values.
constexpr int side_bytes(Code c, int dim) {
  return c == Code::full ? codec::kFragmentFullTokens * dim * 2 : code_bytes(c, dim) + scalar_bytes(c, dim);
}

/// codec::Rotation as bits: a one is a minus.
struct RotationBits {
  uint32_t signs[2][kMaxHeadDim / 32] = {};
  uint32_t core[kMaxCore] = {};  // rows of the core matrix
  int rounds = 0;                // 0: no rotation
  int core_order = 1;
};

/// turboquant: level i is worth (2 u[i] + 1) * step. Of 5 and 6 bits, u has the low parts of the positive levels and `high` their high
/// parts, of every level or of eight at a time: a level is (2 (u + 4 high + 2) + 1) * step, and minus turns all bits of both.
struct Levels {
  int8_t u[32] = {}, high[16] = {};
  float step = 0;
};

/// Rows [batch][head][token][dim] in any arrangement; strides in numbers.
struct Rows {
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, token_stride = 0, dim_stride = 1;
  Number type = Number::f16;
};

}  // namespace tersor::kernels::cuda
