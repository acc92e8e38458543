// The steps of attention over one tile of 64 tokens; each is compiled for every SIMD target, in files of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/layout.h"

namespace tersor::kernels {

/// Query rows as 16-bit integers: number = integer * steps[row].
struct IntegerRows {
  int32_t* words = nullptr;  // [row][padded dim / 2], packed for the target's dot product
  int32_t* sums = nullptr;   // [row][padded dim / 16]: sums of 16 integers
  float* steps = nullptr;    // [row]
};

/// Whether scores and outputs of a layout's codes come from integer dot products.
inline bool has_integer_dots(const codec::Layout& layout) {
  return layout.family == codec::Family::affine || (layout.family == codec::Family::turboquant && layout.bits <= 4);
}

}  // namespace tersor::kernels

/// Declares the steps within the namespace of the current target.
#define TERSOR_KV_ATTEND_STEPS                                                                                                           \
  /* Quantises query rows of `dim` (padded) floats. */                                                                                   \
  void QuantiseRows(const float* rows, size_t ld, size_t count, size_t dim, const IntegerRows& to);                                      \
  /* scores[row][64] = rows times the keys of the first `tokens` tokens of one compressed block; other scores are undefined. */          \
  /* scalars: [scalar rows][64] floats of scratch. */                                                                                    \
  void ScoreCodes(const codec::Layout& keys, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,    \
                  float* scores);                                                                                                        \
  /* outputs[row] += weights[row][64] times the values of one compressed block. Weights of tokens from `tokens` on must be 0. */         \
  void WeighCodes(const codec::Layout& values, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,     \
                  float* outputs, size_t ld);                                                                                            \
  /* The same for `full` blocks. */                                                                                                      \
  void ScoreFull(const codec::Layout& keys, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count, float* scores); \
  void WeighFull(const codec::Layout& values, const uint8_t* blocks, int tokens, const float* weights, size_t count, float* outputs,     \
                 size_t ld);
