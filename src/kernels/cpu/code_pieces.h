// Where the codes of a packed row lie in its 32-bit words, as tables the compiler evaluates.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The part of one code that lies in one word. Masked out of the word in place, it stands for `factor` times its number, so a code
/// that straddles two words is the sum of its two pieces and no bits need to be joined.
struct CodePiece {
  int code = 0;       // within a unit of 32 codes
  uint32_t mask = 0;  // 0: unused slot
  float factor = 0;
};

/// 32 codes fill kBits words exactly. Word p of such a unit (p = 0 for 2, 4 and 8 bits, where all words are alike) holds the pieces
/// table[p]. The piece with the word's top bit is always in the last slot and is taken after a right shift by kTopShift, so that
/// every masked number is a non-negative int32.
template <int kBits>
struct CodePieces {
  static constexpr bool kUniform = 32 % kBits == 0;
  static constexpr int kPhases = kUniform ? 1 : kBits;
  static constexpr int kTopShift = kUniform ? 32 - kBits : 1;
  static constexpr int count(int word) { return (32 * word + 31) / kBits - 32 * word / kBits + 1; }
  static constexpr int slots() {
    int most = 0;
    for (int p = 0; p < kPhases; ++p) most = std::max(most, count(p));
    return most;
  }
  static constexpr int kSlots = slots();
  using Table = std::array<std::array<CodePiece, kSlots>, kPhases>;

  static constexpr Table make() {
    Table table{};
    for (int p = 0; p < kPhases; ++p) {
      const int first = 32 * p / kBits;
      for (int i = 0; i < count(p); ++i) {
        const int code = first + i, low = std::max(code * kBits, 32 * p), high = std::min((code + 1) * kBits, 32 * p + 32);
        const int position = low - 32 * p, within = low - code * kBits;
        const bool top = high == 32 * p + 32;
        const int shift = top ? kTopShift : 0;
        CodePiece& piece = table[p][top ? kSlots - 1 : i];
        piece.code = code;
        piece.mask = static_cast<uint32_t>(((uint64_t{1} << (high - low)) - 1) << position >> shift);
        piece.factor = power_of_two(within - position + shift);
      }
    }
    return table;
  }

 private:
  static constexpr float power_of_two(int exponent) {
    float value = 1;
    for (; exponent > 0; --exponent) value *= 2;
    for (; exponent < 0; ++exponent) value /= 2;
    return value;
  }
};

}  // namespace tersor::kernels
