// The tiles that GPU tensor cores read: codes of 64 tokens in the order of matrix fragments.
//
// Codes are the A operand (16 rows x 32 columns of 8-bit numbers) of an integer matrix product: scores are K Q^T with tokens as rows and
// dimensions as columns, outputs V^T P^T with dimensions as rows and tokens as columns. Of a fragment, lane = 4 g + t of a warp holds four
// registers of four bytes each: register r covers row g + 8 (r & 1), columns 16 (r >> 1) + 4 t + byte.
// A unit is two fragments, that is 32 codes a lane, packed into `words` 32-bit words a lane. A tile side has dim / 16 units:
//   keys:   unit 2 ks + mp holds tokens 32 mp ... + 31 (fragment = token / 16 % 2) of dimensions 32 ks ... + 31; when dim is an odd
//           multiple of 16 the last unit holds the last 16 dimensions of all four groups of 16 tokens, two registers each
//   values: unit md holds dimensions 16 md ... + 15 of all tokens, fragment = token / 32; the token order within 16 is 0, 8, 1, 9, 2, ...
//           because that is how the weights come out of the score product
// Units are stored in chunks of at most four words: [unit][chunk][lane][words]. Scalars are rows of 64 16-bit numbers in the order
// [g][token / 16][half] of token = 16 m + g + 8 half. A tile is: key codes, key scalars, value scalars, value codes.
// `full` tiles hold 16 tokens of 16-bit numbers for the 16 x 16 product: keys, then values, [dim / 16][lane][register][2].
#pragma once

#include <cstdint>

namespace tersor::codec {

inline constexpr int kFragmentTokens = 64;      // tokens of a tile of codes
inline constexpr int kFragmentFullTokens = 16;  // and of a `full` one

/// How the codes of a unit fill its words.
enum class Packing : uint8_t {
  sign1,    // turboquant:1: the level's index in nibbles, four codes a nibble
  nibble2,  // turboquant:2: two codes a nibble, so that a nibble masked selects a byte of a table
  nibble3,  // turboquant:3: a code in the low three bits of a nibble; the nibbles' top bits hold the codes of registers 6 and 7
  mirror4,  // turboquant:4: magnitude in the low three bits of a nibble, sign in a top bit where a byte permute can spread it
  plain2,   // affine: codes as they are, fields of a byte belong to different registers
  plain4,
  plain8,
};

constexpr int packing_bits(Packing p) {
  return p == Packing::sign1                             ? 1
         : p == Packing::nibble2 || p == Packing::plain2 ? 2
         : p == Packing::nibble3                         ? 3
         : p == Packing::plain8                          ? 8
                                                         : 4;
}
/// Words a lane of a unit: 32 codes of `bits` bits.
constexpr int packing_words(Packing p) { return packing_bits(p); }

struct BitOfWord {
  int word, shift;
};
/// Where bit `bit` of the stored code of (register 0..7, byte 0..3) lies within a lane's words.
constexpr BitOfWord bit_of_word(Packing p, int reg, int byte, int bit) {
  const int nibble = 4 * (4 * (reg & 1) + byte);
  switch (p) {
    case Packing::sign1: return {0, nibble + (reg >> 1)};
    case Packing::nibble2: return {reg >> 2, nibble + 2 * ((reg >> 1) & 1) + bit};
    case Packing::nibble3: return reg < 6 ? BitOfWord{reg >> 1, nibble + bit} : BitOfWord{bit, nibble + 3};
    case Packing::mirror4: return bit < 3 ? BitOfWord{reg >> 1, nibble + bit} : BitOfWord{reg >> 1, 8 * byte + ((reg & 1) ? 3 : 7)};
    case Packing::plain2: return {reg >> 2, 8 * byte + 2 * (reg & 3) + bit};
    case Packing::plain4: return {reg >> 1, 8 * byte + 4 * (reg & 1) + bit};
    case Packing::plain8: return {reg, 8 * byte + bit};
  }
  return {0, 0};
}
/// A level's index to what is stored and back (the map is its own inverse but for mirror4's two halves).
constexpr unsigned stored_code(Packing p, unsigned code) { return p != Packing::mirror4 ? code : code < 8 ? 15 - code : code - 8; }
constexpr unsigned code_of_stored(Packing p, unsigned stored) {
  return p != Packing::mirror4 ? stored : stored < 8 ? stored + 8 : 15 - stored;
}

/// Byte offset of a lane's word from the start of its unit.
constexpr int word_offset(int words, int lane, int word) {
  const int chunk = words >= 4 ? word / 4 * 4 : words == 3 && word == 2 ? 2 : 0;
  const int chunk_words = words >= 4 ? 4 : words == 3 ? (word < 2 ? 2 : 1) : words;
  return chunk * 128 + lane * 4 * chunk_words + 4 * (word - chunk);
}

struct FragmentPlace {
  int unit, lane, reg, byte;
};
struct TokenDim {
  int token, dim;
};

constexpr FragmentPlace key_fragment(int dims, int token, int dim) {
  const int m = token / 16, lane = (token % 8) * 4 + dim % 16 / 4, half = token / 8 % 2, steps = dims / 32;
  if (dim >= steps * 32) return {2 * steps, lane, 2 * m + half, dim % 4};
  return {dim / 32 * 2 + m / 2, lane, (m % 2) * 4 + 2 * (dim / 16 % 2) + half, dim % 4};
}
constexpr TokenDim key_of_fragment(int dims, FragmentPlace at) {
  const int g = at.lane / 4, t = at.lane % 4, steps = dims / 32;
  if (at.unit == 2 * steps) return {(at.reg >> 1) * 16 + g + 8 * (at.reg & 1), steps * 32 + 4 * t + at.byte};
  const int m = at.unit % 2 * 2 + (at.reg >> 2);
  return {m * 16 + g + 8 * (at.reg & 1), at.unit / 2 * 32 + 16 * (at.reg >> 1 & 1) + 4 * t + at.byte};
}
constexpr FragmentPlace value_fragment(int token, int dim) {
  const int within = token % 16;
  return {dim / 16, (dim % 8) * 4 + within % 8 / 2, (token / 32) * 4 + 2 * (token / 16 % 2) + dim / 8 % 2, (within & 1) * 2 + within / 8};
}
constexpr TokenDim value_of_fragment(FragmentPlace at) {
  const int g = at.lane / 4, t = at.lane % 4;
  return {(at.reg >> 1) * 16 + 2 * t + (at.byte >> 1) + 8 * (at.byte & 1), at.unit * 16 + g + 8 * (at.reg & 1)};
}

/// Index of a token's scalar within its row of 64.
constexpr int scalar_index(int token) { return (token % 8) * 8 + token / 16 * 2 + token / 8 % 2; }

/// Index of a `full` number within its tile side, in elements.
constexpr int full_key_index(int token, int dim) {
  const int k = dim % 16;
  return dim / 16 * 256 + ((token % 8) * 4 + k % 8 / 2) * 8 + (token / 8 + 2 * (k / 8)) * 2 + k % 2;
}
constexpr int full_value_index(int token, int dim) {
  const int row = dim % 16;
  return dim / 16 * 256 + ((row % 8) * 4 + token % 8 / 2) * 8 + (row / 8 + 2 * (token / 8)) * 2 + token % 2;
}

}  // namespace tersor::codec
