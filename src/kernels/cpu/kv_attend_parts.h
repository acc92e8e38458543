// The steps of attention over one tile of 64 tokens; each is compiled for every SIMD target, in files of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/layout.h"
#include "kernels/cpu/kv_tables.h"

namespace tersor::kernels {

/// Query rows, or one section of them, as 16-bit integers: number = integer * steps[row].
struct IntegerRows {
  int32_t* words = nullptr;  // [row][padded dim / 2], packed for dot products with the bytes, or the 16-bit integers, of codes
  int32_t* sums = nullptr;   // [row][padded dim / 16]: sums of 16 integers
  float* steps = nullptr;    // [row]
};

/// Whether codes are multiplied as integers, in every part: those of levels, affine ones and e2m1.
inline bool has_integers(const codec::Layout& layout) {
  return layout.family != codec::Family::full && std::all_of(layout.parts().begin(), layout.parts().end(), [](const codec::Layout& part) {
           return part.has_norms() || part.family == codec::Family::affine || part.family == codec::Family::mxfp4;
         });
}
/// Rows of 64 floats that a part's scalars become.
inline size_t decoded_scalar_rows(const codec::Layout& part) {
  const size_t numbers = part.block_scalars() * (part.family == codec::Family::mxfp4 ? 2 : 1);
  return std::max<size_t>(1, (numbers + codec::kTileTokens - 1) / codec::kTileTokens);
}

/// What the codes of a compressed layout stand for in dot products: bytes, or 16-bit integers (10-bit levels).
enum class CodeNumbers { bytes, pairs };
inline CodeNumbers numbers_of(const codec::Layout& part) {
  return part.has_norms() && part.bits > 4 ? CodeNumbers::pairs : CodeNumbers::bytes;
}

}  // namespace tersor::kernels

/// Declares the steps within the namespace of the current target.
#define TERSOR_KV_ATTEND_STEPS                                                                                                             \
  /* Quantises query rows of `dim` (padded) floats for codes of one kind. */                                                               \
  void QuantiseRows(const float* rows, size_t ld, size_t count, size_t dim, CodeNumbers numbers, const IntegerRows& to);                   \
  /* scores[row][64] = rows times one part of the keys of the first `tokens` tokens of a block; other scores are undefined. */             \
  /* scalars: [scalar rows][64] floats of scratch. */                                                                                      \
  void ScoreAffine(const codec::Layout& keys, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,     \
                   float* scores);                                                                                                         \
  void ScoreLevels(const codec::Layout& keys, const uint8_t* block, int tokens, const IntegerRows& rows, size_t count, float* scalars,     \
                   float* scores);                                                                                                         \
  /* The same for keys by channel, from rows of floats `ld` apart: each group's scales go into rows of its own, for which `scratch` is. */ \
  void ScoreChannels(const codec::Layout& keys, const uint8_t* block, int tokens, const float* rows, size_t ld, size_t count,              \
                     const IntegerRows& scratch, float* scalars, float* scores);                                                           \
  /* Codebook indices, where fits_tables says so and the target has tables (kv_tables-inl.h). columns: the centroids, [number][centroid].  \
   */                                                                                                                                      \
  void MakeTables(const codec::Layout& keys, const float* columns, const float* rows, size_t ld, size_t count, const TableRows& to);       \
  void MakeBook(const codec::Layout& values, const float* columns, const IntegerBook& to);                                                 \
  void ScoreTables(const codec::Layout& keys, const uint8_t* block, const TableRows& rows, size_t count, float* scores);                   \
  void WeighTables(const codec::Layout& values, const uint8_t* block, const IntegerBook& book, const float* weights, size_t count,         \
                   float* outputs, size_t ld);                                                                                             \
  /* outputs[row] += weights[row][64] times one part of the values of a block. Weights of tokens from `tokens` on must be 0. */            \
  void WeighAffine(const codec::Layout& values, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,      \
                   float* outputs, size_t ld);                                                                                             \
  void WeighLevels(const codec::Layout& values, const uint8_t* block, int tokens, const float* weights, size_t count, float* scalars,      \
                   float* outputs, size_t ld);                                                                                             \
  /* The same for `full` blocks. */                                                                                                        \
  void ScoreFull(const codec::Layout& keys, const uint8_t* blocks, int tokens, const float* rows, size_t ld, size_t count, float* scores); \
  void WeighFull(const codec::Layout& values, const uint8_t* blocks, int tokens, const float* weights, size_t count, float* outputs,       \
                 size_t ld);
