// Codes of five and six bits in the tiles of codec/fragment.h: a sign and a magnitude of four or five bits. A lane's first four words hold
// the sign and the magnitude's low three bits as mirror4 does; the bits above follow in words of their own, as sign1 or nibble2 packs
// codes.
#pragma once

#include "codec/fragment.h"

namespace tersor::codec {

/// How a lane's words hold the codes of a unit, whatever their width.
struct FragmentCode {
  Packing packing = Packing::mirror4;  // of all bits, or of the low four
  int more = 0;                        // bits above these, in words of their own

  constexpr int bits() const { return packing_bits(packing) + more; }
  constexpr int words() const { return packing_words(packing) + more; }
  constexpr Packing packing_of_more() const { return more == 1 ? Packing::sign1 : Packing::nibble2; }
  /// Where bit `bit` of the stored code of (register, byte) lies within a lane's words.
  constexpr BitOfWord place(int reg, int byte, int bit) const {
    if (more == 0 || bit < 4) return bit_of_word(packing, reg, byte, bit);
    const BitOfWord above = bit_of_word(packing_of_more(), reg, byte, bit - 4);
    return {above.word + 4, above.shift};
  }
  /// Byte offset of a lane's word from the start of its unit.
  constexpr int offset(int lane, int word) const {
    if (more == 0) return word_offset(words(), lane, word);
    return word < 4 ? word_offset(4, lane, word) : 4 * 128 + word_offset(more, lane, word - 4);
  }
  /// A level's index to what is stored and back.
  constexpr unsigned stored(unsigned code) const {
    if (more == 0) return stored_code(packing, code);
    const unsigned half = 8u << more;
    const bool minus = code < half;
    const unsigned magnitude = minus ? half - 1 - code : code - half;
    return (magnitude & 7u) | (minus ? 8u : 0u) | magnitude >> 3 << 4;
  }
  constexpr unsigned code_of(unsigned stored) const {
    if (more == 0) return code_of_stored(packing, stored);
    const unsigned half = 8u << more, magnitude = (stored & 7u) | stored >> 4 << 3;
    return stored & 8u ? half - 1 - magnitude : half + magnitude;
  }
};

}  // namespace tersor::codec
