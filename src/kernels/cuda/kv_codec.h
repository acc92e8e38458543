// A codec as the kernels take it. Host only.
#pragma once

#include <optional>
#include <span>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "kernels/cuda/kv_format.h"

namespace tersor::kernels::cuda {

/// Empty when there are no kernels for the codec.
inline std::optional<Code> code_of(const codec::Codec& c) {
  if (!codec::Layout::fits_fragments(c)) return std::nullopt;
  const codec::Spec& spec = c.spec();
  if (spec.family == codec::Family::full) return Code::full;
  if (spec.family == codec::Family::turboquant) return static_cast<Code>(static_cast<int>(Code::turbo1) + spec.bits - 1);
  if (spec.group != kAffineGroup) return std::nullopt;
  return spec.bits == 2 ? Code::affine2 : spec.bits == 4 ? Code::affine4 : Code::affine8;
}

/// Parts of five- and six-bit levels. Six bits: a high part for eight levels, so that low parts are spread around zero; five bits: low
/// parts from 0 to 3. Both fit a byte: eight neighbours span at most 230 of a grid of 511.
inline void set_wide_levels(std::span<const int16_t> grid, Levels& levels) {
  const size_t count = grid.size() / 2, shared = grid.size() == 64 ? 8 : 1;
  const auto whole = [&](size_t i) { return (grid[count + i] - 1) / 2; };
  for (size_t i = 0; i < count; ++i) {
    const int middle = shared == 1 ? whole(i) : (whole(i / 8 * 8) + whole(i / 8 * 8 + 7)) / 2;
    const int high = (middle + 2) / 4 - 1, low = whole(i) - 4 * high - 2;
    levels.high[i / shared] = static_cast<int8_t>(high), levels.u[i] = static_cast<int8_t>(low);
  }
}

inline Levels levels_of(const codec::Codec& c) {
  Levels levels;
  if (c.family() != codec::Family::turboquant) return levels;
  levels.step = c.grid_step();
  if (c.spec().bits > 4)
    set_wide_levels(c.grid(), levels);
  else
    for (size_t i = 0; i < c.grid().size(); ++i) levels.u[i] = static_cast<int8_t>((c.grid()[i] - 1) >> 1);
  return levels;
}

/// rotation: may be null.
inline RotationBits rotation_bits(const codec::Rotation* rotation) {
  RotationBits bits;
  if (rotation == nullptr) return bits;
  bits.rounds = rotation->rounds(), bits.core_order = rotation->core();
  const int dim = rotation->dim();
  for (int round = 0; round < bits.rounds; ++round)
    for (int d = 0; d < dim; ++d)
      if (rotation->signs()[round * dim + d] < 0) bits.signs[round][d / 32] |= 1u << d % 32;
  for (int r = 0; r < bits.core_order; ++r)
    for (int k = 0; k < bits.core_order; ++k)
      if (rotation->core_matrix()[r * bits.core_order + k] < 0) bits.core[r] |= 1u << k;
  return bits;
}

}  // namespace tersor::kernels::cuda
