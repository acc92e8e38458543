// How the codes of many tokens lie in memory.
//
// Tokens of one KV head are stored in blocks. Compressed blocks hold 64 tokens, in one part or several: a part is a run of codes of one
// width that decodes to one section of the stored vector (turboquant-prod: levels, then signs; turboquant-rvq: its two stages, which add up
// in one section). A block is the parts' bit planes, one part after the other, then all scalars.
// Planes have 8, 4, 2 or 1 bits (3 = 2+1, 5 = 4+1, 6 = 4+2, low bits first), each a run of 64-byte rows. A row is 16 lanes of 4 bytes, the
// shape that byte permutes and integer dot products want:
//   keys:   lane = token % 16, byte = dim % 4      (scores: lanes are tokens, no horizontal sums)
//   values: lane = dim % 16,   byte = token % 4    (outputs: lanes are dims)
// and the 8 / bits fields of a byte belong to tokens 16 apart (keys) or 4 apart (values). Indices of codebooks (vecinfer) lie one after
// the other instead, 64 tokens each: field f of byte t of a plane of b bits belongs to token t + 8 b f.
// Scalars are rows of 64: 16-bit floats, or bytes (exponents). Where they belong to channels (affine with axis=channel) they are rows of
// one number a dim: for each group of tokens in the block its scales, then its biases.
// `full` blocks hold 16 tokens (or 4, or 8), keys [padded dim][16], values [16][padded dim], in the storage type.
// A section is padded to a multiple of 16; pad codes are zero and take no part in any sum.
//
// That is the arrangement for processors (Arrangement::lanes). GPU tensor cores read tiles in fragment order (Arrangement::fragments,
// codec/fragment.h), in which a block of keys is followed by the block of values of the same tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/fragment.h"
#include "tersor/codec.h"

namespace tersor::codec {

inline constexpr int kTileTokens = 64;  // tokens a kernel decodes at once
inline constexpr int kFullBlockTokens = 16;
inline constexpr int kLanes = 16, kRowBytes = 64;
inline constexpr int kMaxDim = 1024;

struct Plane {
  int bits = 0;       // 8, 4, 2 or 1
  int shift = 0;      // where these bits stand in the code
  size_t offset = 0;  // of the plane in its block, in bytes
};

/// Place of one code's bits within a plane.
struct BitPlace {
  size_t byte;
  int shift;
};

enum class Arrangement { lanes, fragments };

struct Layout {
  /// full_block_tokens: 4, 8 or 16 tokens a block of `full`; fewer waste less memory, 16 are read fastest.
  /// Fragments: see fits_fragments; `full` blocks hold 16 tokens there.
  explicit Layout(std::shared_ptr<const Codec> codec, int full_block_tokens = kFullBlockTokens,
                  Arrangement arrangement = Arrangement::lanes);
  /// Whether a codec's vectors can be stored as fragments.
  static bool fits_fragments(const Codec& codec);

  std::shared_ptr<const Codec> codec;
  Family family;
  Role role;
  Dtype dtype;  // full
  Arrangement arrangement;
  Packing packing{};  // fragments
  /// Of vectors before they are encoded; of a part: of its section.
  int dim;
  /// Of stored vectors, each section padded.
  int padded_dim;
  int stored_begin = 0;  // of a part's section (or `full`'s numbers) in a stored vector, a multiple of 16
  int codes = 0;         // of a token, in all parts
  int first_code = 0;    // of a part, among them
  int bits, group, groups;
  int block_tokens;
  int plane_count = 0;
  Plane planes[2];
  size_t scalars_offset = 0;
  int scalar_rows = 0;   // turboquant and what is made of it: norms; affine: groups scales, then groups biases; mxfp4, mxfp8: exponents
  int first_scalar = 0;  // of a part, among all scalars
  size_t block_bytes = 0;
  size_t stride = 0;                  // from a block to the next: block_bytes, or with fragments what keys and values take together
  size_t codes_offset = 0;            // fragments: values come after their scalars
  const LevelTable* table = nullptr;  // of parts whose codes have levels
  const float* levels = nullptr;      // and its levels, 2^bits

  /// What the block is made of: itself where there is one part, as large as the vectors. `full` has none. read_parts: those that decoding
  /// reads.
  std::span<const Layout> parts() const {
    return family == Family::full ? std::span<const Layout>() : parts_.empty() ? std::span(this, 1) : std::span(parts_);
  }
  std::span<const Layout> read_parts() const {
    return family == Family::turboquant_rvq ? parts().first(static_cast<size_t>(codec->spec().stages)) : parts();
  }
  /// Scales and biases belong to a channel of several tokens, which are encoded together.
  bool by_channel() const { return codec->block_tokens() > 1; }
  /// All scalars of a block.
  size_t block_scalars() const { return static_cast<size_t>(scalar_rows) * (by_channel() ? padded_dim : kTileTokens); }
  /// Codes stand for levels, times one norm a token.
  bool has_norms() const { return codec->form().scalar_form == ScalarForm::norm; }
  bool indexed() const { return family == Family::vecinfer; }
  /// Bytes of a scalar: 2, or 1 (exponents).
  size_t scalar_bytes() const { return family == Family::mxfp4 || family == Family::mxfp8 ? 1 : 2; }

  /// Blocks for this many tokens, and their bytes.
  size_t blocks(int64_t tokens) const { return static_cast<size_t>((tokens + block_tokens - 1) / block_tokens); }
  size_t bytes(int64_t tokens) const { return blocks(tokens) * block_bytes; }

  /// Plain references: one token of a run of blocks, or codec->block_tokens() tokens from a multiple of that.
  void put(uint8_t* blocks, int64_t token, std::span<const Code> codes, std::span<const float> scalars) const;
  void get(const uint8_t* blocks, int64_t token, std::span<Code> codes, std::span<float> scalars) const;
  void put_full(uint8_t* blocks, int64_t token, std::span<const float> x) const;
  void get_full(const uint8_t* blocks, int64_t token, std::span<float> x) const;
  /// The stored vectors as numbers (codec->stored_dim() of them each), whatever the family.
  void decode(const uint8_t* blocks, int64_t token, std::span<float> x) const;

  /// Where `full` keeps one number, in elements from the start of the blocks (lanes) or in bytes (either arrangement).
  size_t full_index(int64_t token, int d) const {
    const size_t block = static_cast<size_t>(token / block_tokens * block_tokens) * padded_dim, t = token % block_tokens;
    return block + (role == Role::keys ? static_cast<size_t>(d) * block_tokens + t : t * padded_dim + d);
  }
  size_t full_offset(int64_t token, int d) const {
    if (arrangement == Arrangement::lanes) return full_index(token, d) * size_of(dtype);
    const int t = static_cast<int>(token % block_tokens);
    const int at = role == Role::keys ? full_key_index(t, d) : full_value_index(t, d);
    return static_cast<size_t>(token / block_tokens) * stride + static_cast<size_t>(at) * size_of(dtype);
  }

 private:
  struct Part {};
  Layout(const Layout& whole, Part, size_t piece, size_t& offset);
  void make_parts();
  void put_planes(uint8_t* block, int t, std::span<const Code> codes) const;
  void get_planes(const uint8_t* block, int t, std::span<Code> codes) const;
  void put_fragments(uint8_t* block, int t, std::span<const Code> codes) const;
  void get_fragments(const uint8_t* block, int t, std::span<Code> codes) const;
  size_t scalar_offset(int index, int t) const;
  BitPlace place(int width, int t, int code) const;

  std::vector<Layout> parts_;  // unless there is one as large as the vectors
};

/// Keys: token t (0..63) and dimension d. Values likewise.
constexpr BitPlace key_place(int bits, int t, int d) {
  const int quad = d / 4, group = t / kLanes;
  const size_t at = static_cast<size_t>(t % kLanes) * 4 + d % 4;
  switch (bits) {
    case 8: return {at + static_cast<size_t>(quad * 4 + group) * kRowBytes, 0};
    case 4: return {at + static_cast<size_t>(quad * 2 + group / 2) * kRowBytes, 4 * (group % 2)};
    case 2: return {at + static_cast<size_t>(quad) * kRowBytes, 2 * group};
    default: return {at + static_cast<size_t>(quad / 2) * kRowBytes, group + 4 * (quad % 2)};
  }
}
constexpr BitPlace value_place(int bits, int t, int d) {
  const int fields = 8 / bits, quad = t / 4, rows = kTileTokens / 4 / fields;
  const size_t at = static_cast<size_t>(d % kLanes) * 4 + t % 4;
  return {at + static_cast<size_t>(d / kLanes * rows + quad / fields) * kRowBytes, bits * (quad % fields)};
}

/// Indices: code j of token t.
constexpr BitPlace index_place(int bits, int t, int j) {
  const int bytes = 8 * bits;
  return {static_cast<size_t>(j * bytes + t % bytes), t / bytes * bits};
}

}  // namespace tersor::codec
