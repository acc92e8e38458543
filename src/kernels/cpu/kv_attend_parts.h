// The steps of attention over one tile of 64 tokens; each is compiled for every SIMD target, in files of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/layout.h"

namespace tersor::kernels {

/// Query rows as 16-bit integers: number = integer * steps[row].
struct IntegerRows {
  int32_t* words[2] = {};   // [row][padded dim / 2], packed for dot products with the bytes, and the 16-bit integers, of codes
  int32_t* sums = nullptr;  // [row][padded dim / 16]: sums of 16 integers
  float* steps = nullptr;   // [row]
};

/// What the codes of a compressed layout stand for in dot products: bytes, or 16-bit integers (10-bit levels).
enum class CodeNumbers { bytes, pairs };
inline CodeNumbers numbers_of(const codec::Layout& layout) {
  return layout.family == codec::Family::turboquant && layout.bits > 4 ? CodeNumbers::pairs : CodeNumbers::bytes;
}

}  // namespace tersor::kernels

/// Declares the steps within the namespace of the current target.
#define TERSOR_KV_ATTEND_STEPS                                                                                                             \
  /* Quantises query rows of `dim` (padded) floats for codes of one kind. */                                                               \
  void QuantiseRows(const float* rows, size_t ld, size_t count, size_t dim, CodeNumbers numbers, const IntegerRows& to);                   \
  /* scores[row][64] = rows times the keys of the first `tokens` tokens of one compressed block; other scores are undefined. */            \
  /* scalars: [scalar rows][64] floats of scratch. */                                                                                      \
  void ScoreAffine(const codec::Layout& keys, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,     \
                   float* scores);                                                                                                         \
  void ScoreLevels(const codec::Layout& keys, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,     \
                   float* scores);                                                                                                         \
  /* outputs[row] += weights[row][64] times the values of one compressed block. Weights of tokens from `tokens` on must be 0. */           \
  void WeighAffine(const codec::Layout& values, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,      \
                   float* outputs, size_t ld);                                                                                             \
  void WeighLevels(const codec::Layout& values, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,      \
                   float* outputs, size_t ld);                                                                                             \
  /* The same for `full` blocks. */                                                                                                        \
  void ScoreFull(const codec::Layout& keys, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count, float* scores); \
  void WeighFull(const codec::Layout& values, const uint8_t* blocks, int tokens, const float* weights, size_t count, float* outputs,       \
                 size_t ld);
