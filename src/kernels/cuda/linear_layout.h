// The packed layout of an affine-quantised weight, shared by host and device.
//
// A strip is 16 rows; along k it is cut into tiles of 2048 bytes of codes (256 codes a row at 4 bits, 128 at 8) followed by the tile's
// scales and biases; k is filled up to whole tiles with zero codes, scales and biases. A tile is contiguous, a multiple of 64 bytes:
//   codes   4 units of 512 bytes: 16 bytes for each lane of a warp, lane = 4 * g + t;
//   scales  [16 rows][groups of the tile][scale, bias], in the type they are stored in.
// A unit covers 4 (4 bits) or 2 (8 bits) steps of 16 along k. In a step a lane owns the fragment of mma.m16n8k16's (and wgmma's)
// first operand:  a0 = row g, k 2t and 2t+1;  a1 = row g+8, the same k;  a2 = row g, k 2t+8 and 2t+9;  a3 = row g+8, those k.
//   4 bits  word = step; rotated right by 4i the word holds the lower code of a_i in bits 3 to 6 and the upper one in bits 19 to 22,
//           where one mask and one exponent make a pair of numbers of them;
//   8 bits  words 2 * step, 2 * step + 1; bytes: a0 lower, upper, a1 lower, upper; then a2, a3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/linear.h"

#ifdef __CUDACC__
#define TERSOR_BOTH __host__ __device__
#else
#define TERSOR_BOTH
#endif

namespace tersor::kernels::cuda {

constexpr int kCodeBytes = 2048;  // of a tile
constexpr int kUnitBytes = 512;

TERSOR_BOTH constexpr int tile_k(int bits) { return kCodeBytes * 8 / kStripRows / bits; }
TERSOR_BOTH constexpr int scale_bytes(int bits, int group, int scale_size) { return kStripRows * (tile_k(bits) / group) * 2 * scale_size; }
TERSOR_BOTH constexpr int tile_bytes(int bits, int group, int scale_size) { return kCodeBytes + scale_bytes(bits, group, scale_size); }
TERSOR_BOTH constexpr int tiles_of(int bits, int k) { return (k + tile_k(bits) - 1) / tile_k(bits); }
TERSOR_BOTH constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int tile_bytes(const PackedLinear& w) { return tile_bytes(w.bits, w.group, static_cast<int>(size_of(w.scale_type))); }

/// Where code i (of 8 at 4 bits, 4 at 8 bits) of word `word` of lane `lane` in unit `unit` comes from.
struct CodePlace {
  int row, k;  // row of the strip, code of the tile
};
TERSOR_BOTH constexpr CodePlace code_place(int bits, int unit, int lane, int word, int i) {
  const int g = lane >> 2, t = lane & 3;
  const int step = bits == 4 ? unit * 4 + word : unit * 2 + (word >> 1);
  const int reg = bits == 4 ? (i & 3) : (word & 1) * 2 + (i >> 1);
  const int upper = bits == 4 ? i >> 2 : i & 1;
  return {g + 8 * (reg & 1), step * 16 + 2 * t + 8 * (reg >> 1) + upper};
}

}  // namespace tersor::kernels::cuda
