#include "codec/layout.h"

#include <cstring>

#include "codec/scalar.h"

namespace tersor::codec {
namespace {

uint16_t encode_scalar(Family family, float value) { return family == Family::turboquant ? encode_norm(value) : encode_scale(value); }
float decode_scalar(Family family, uint16_t bits) { return family == Family::turboquant ? decode_norm(bits) : decode_scale(bits); }

BitPlace place(Role role, int bits, int t, int d) { return role == Role::keys ? key_place(bits, t, d) : value_place(bits, t, d); }

Packing packing_of(const Codec& codec) {
  const int bits = codec.spec().bits;
  if (codec.family() == Family::affine) return bits == 2 ? Packing::plain2 : bits == 4 ? Packing::plain4 : Packing::plain8;
  return bits == 1 ? Packing::sign1 : bits == 2 ? Packing::nibble2 : bits == 3 ? Packing::nibble3 : Packing::mirror4;
}

}  // namespace

bool Layout::fits_fragments(const Codec& codec) {
  const Spec& spec = codec.spec();
  if (codec.dim() % kLanes != 0) return false;
  switch (codec.family()) {
    case Family::full: return codec.dtype() != Dtype::f32;
    case Family::affine: return spec.bits == 2 || spec.bits == 4 || spec.bits == 8;
    case Family::turboquant: return spec.bits <= 4;
  }
  return false;
}

Layout::Layout(std::shared_ptr<const Codec> c, int full_block_tokens, Arrangement a)
    : codec(std::move(c)),
      family(codec->family()),
      role(codec->role()),
      dtype(codec->dtype()),
      arrangement(a),
      dim(codec->dim()),
      padded_dim((dim + kLanes - 1) / kLanes * kLanes),
      bits(codec->spec().bits),
      group(codec->spec().group),
      groups(codec->groups()),
      block_tokens(family != Family::full                  ? kTileTokens
                   : arrangement == Arrangement::fragments ? kFragmentFullTokens
                                                           : full_block_tokens),
      levels(codec->levels().data()) {
  if (arrangement == Arrangement::fragments && !fits_fragments(*codec))
    throw Error("codec " + codec->spec().str() + " of head size " + std::to_string(dim) +
                " has no fragment tiles; use the other arrangement");
  if (family == Family::full) {
    stride = block_bytes = static_cast<size_t>(block_tokens) * padded_dim * size_of(dtype);
    return;
  }
  packing = packing_of(*codec);
  int shift = 0;
  for (const int width : {8, 4, 2, 1})
    if (bits & width) {
      planes[plane_count++] = {width, shift, scalars_offset};
      scalars_offset += static_cast<size_t>(kTileTokens) * padded_dim * width / 8;
      shift += width;
    }
  scalar_rows = family == Family::affine ? 2 * groups : 1;
  const size_t scalars = static_cast<size_t>(scalar_rows) * kTileTokens * sizeof(uint16_t);
  stride = block_bytes = scalars_offset + scalars;
  if (arrangement == Arrangement::fragments && role == Role::values) codes_offset = scalars, scalars_offset = 0;
}

size_t Layout::scalar_offset(int row, int t) const {
  const int place = arrangement == Arrangement::fragments ? scalar_index(t) : t;
  return scalars_offset + (static_cast<size_t>(row) * kTileTokens + place) * sizeof(uint16_t);
}

void Layout::put_fragments(uint8_t* block, int t, std::span<const uint8_t> codes) const {
  const int words = packing_words(packing);
  for (int d = 0; d < dim; ++d) {
    const FragmentPlace at = role == Role::keys ? key_fragment(dim, t, d) : value_fragment(t, d);
    const unsigned code = stored_code(packing, codes[d]);
    for (int bit = 0; bit < bits; ++bit) {
      const BitOfWord to = bit_of_word(packing, at.reg, at.byte, bit);
      uint8_t& byte =
          block[codes_offset + static_cast<size_t>(at.unit) * words * 128 + word_offset(words, at.lane, to.word) + to.shift / 8];
      byte = static_cast<uint8_t>((byte & ~(1u << to.shift % 8)) | (code >> bit & 1u) << to.shift % 8);
    }
  }
}

void Layout::get_fragments(const uint8_t* block, int t, std::span<uint8_t> codes) const {
  const int words = packing_words(packing);
  for (int d = 0; d < dim; ++d) {
    const FragmentPlace at = role == Role::keys ? key_fragment(dim, t, d) : value_fragment(t, d);
    unsigned code = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const BitOfWord from = bit_of_word(packing, at.reg, at.byte, bit);
      const uint8_t byte =
          block[codes_offset + static_cast<size_t>(at.unit) * words * 128 + word_offset(words, at.lane, from.word) + from.shift / 8];
      code |= (byte >> from.shift % 8 & 1u) << bit;
    }
    codes[d] = static_cast<uint8_t>(code_of_stored(packing, code));
  }
}

void Layout::put(uint8_t* blocks, int64_t token, std::span<const uint8_t> codes, std::span<const float> scalars) const {
  uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  if (arrangement == Arrangement::fragments) put_fragments(block, t, codes);
  for (int p = 0; p < plane_count && arrangement == Arrangement::lanes; ++p) {
    const unsigned mask = (1u << planes[p].bits) - 1;
    for (int d = 0; d < dim; ++d) {
      const BitPlace at = place(role, planes[p].bits, t, d);
      uint8_t& byte = block[planes[p].offset + at.byte];
      byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) | ((codes[d] >> planes[p].shift) & mask) << at.shift);
    }
  }
  for (int row = 0; row < scalar_rows; ++row) {
    const uint16_t stored = encode_scalar(family, scalars[row]);
    std::memcpy(block + scalar_offset(row, t), &stored, 2);
  }
}

void Layout::get(const uint8_t* blocks, int64_t token, std::span<uint8_t> codes, std::span<float> scalars) const {
  const uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  if (arrangement == Arrangement::fragments) get_fragments(block, t, codes);
  for (int d = 0; d < dim && arrangement == Arrangement::lanes; ++d) {
    unsigned code = 0;
    for (int p = 0; p < plane_count; ++p) {
      const BitPlace at = place(role, planes[p].bits, t, d);
      code |= ((block[planes[p].offset + at.byte] >> at.shift) & ((1u << planes[p].bits) - 1)) << planes[p].shift;
    }
    codes[d] = static_cast<uint8_t>(code);
  }
  for (int row = 0; row < scalar_rows; ++row) {
    uint16_t stored;
    std::memcpy(&stored, block + scalar_offset(row, t), 2);
    scalars[row] = decode_scalar(family, stored);
  }
}

void Layout::put_full(uint8_t* blocks, int64_t token, std::span<const float> x) const {
  for (int d = 0; d < dim; ++d) {
    uint8_t* at = blocks + full_offset(token, d);
    const uint16_t narrow = dtype == Dtype::f16 ? float_to_half(x[d]) : float_to_bfloat(x[d]);
    if (dtype == Dtype::f32)
      std::memcpy(at, &x[d], 4);
    else
      std::memcpy(at, &narrow, 2);
  }
}

void Layout::get_full(const uint8_t* blocks, int64_t token, std::span<float> x) const {
  for (int d = 0; d < dim; ++d) {
    const uint8_t* at = blocks + full_offset(token, d);
    uint16_t narrow;
    if (dtype == Dtype::f32) {
      std::memcpy(&x[d], at, 4);
    } else {
      std::memcpy(&narrow, at, 2);
      x[d] = dtype == Dtype::f16 ? half_to_float(narrow) : bfloat_to_float(narrow);
    }
  }
}

void Layout::decode(const uint8_t* blocks, int64_t token, std::span<float> x) const {
  if (family == Family::full) return get_full(blocks, token, x);
  std::vector<uint8_t> codes(dim);
  std::vector<float> scalars(scalar_rows);
  get(blocks, token, codes, scalars);
  codec->decode(codes, scalars, x);
}

}  // namespace tersor::codec
