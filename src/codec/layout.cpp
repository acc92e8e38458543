#include "codec/layout.h"

#include <algorithm>
#include <cstring>

#include "codec/levels.h"
#include "codec/microscaling.h"
#include "codec/rotation.h"

namespace tersor::codec {
namespace {

uint16_t encode_scalar(ScalarForm form, float value) {
  return form == ScalarForm::norm    ? encode_norm(value)
         : form == ScalarForm::scale ? encode_scale(value)
                                     : static_cast<uint16_t>(encode_exponent(value));
}
float decode_scalar(ScalarForm form, uint16_t bits) {
  return form == ScalarForm::norm ? decode_norm(bits) : form == ScalarForm::scale ? decode_scale(bits) : decode_exponent(bits);
}

BitPlace place(Role role, int bits, int t, int d) { return role == Role::keys ? key_place(bits, t, d) : value_place(bits, t, d); }

Packing packing_of(const Codec& codec) {
  const int bits = codec.spec().bits;
  if (codec.family() == Family::affine) return bits == 2 ? Packing::plain2 : bits == 4 ? Packing::plain4 : Packing::plain8;
  return bits == 1 ? Packing::sign1 : bits == 2 ? Packing::nibble2 : bits == 3 ? Packing::nibble3 : Packing::mirror4;
}

}  // namespace

bool Layout::fits_fragments(const Codec& codec) {
  const Spec& spec = codec.spec();
  if (codec.dim() % kLanes != 0 || !kernel_gap(codec).empty()) return false;
  switch (codec.family()) {
    case Family::full: return codec.dtype() != Dtype::f32;
    case Family::affine: return spec.bits == 2 || spec.bits == 4 || spec.bits == 8;
    case Family::turboquant: return spec.bits <= 4;
    default: return false;
  }
}

std::string Layout::kernel_gap(const Codec& codec) {
  const Spec& spec = codec.spec();
  if (spec.centre != 0) return "no cache subtracts a mean yet (centre=)";
  switch (spec.family) {
    case Family::full: return "";
    case Family::affine: return spec.axis == Axis::token && !spec.rule ? "" : "there are no kernels for axis= and rule= of affine";
    case Family::turboquant:
      if (resolved(spec.scalar, codec.role()) != resolved(ScalarRule::automatic, codec.role()))
        return "there are no kernels for this scalar=";
      if (!Rotation::is_hadamard(codec.dim()))
        return "kernels rotate by Hadamard matrices, and there is none of order " + std::to_string(codec.dim());
      return "";
    default: return "there are no kernels for it";
  }
}

Layout::Layout(std::shared_ptr<const Codec> c, int full_block_tokens, Arrangement a, Reader reader)
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
  const std::string gap = reader == Reader::kernels ? kernel_gap(*codec) : "";
  if (!gap.empty())
    throw Error("codec " + codec->spec().str() + " cannot hold a cache: " + gap +
                "; codecs that can: full, affine:{2,3,4,5,6,8}[,group=32|64|128], turboquant:{1..6}[,rounds=1|2][,seed=N]");
  if (arrangement == Arrangement::fragments && !fits_fragments(*codec))
    throw Error("codec " + codec->spec().str() + " of head size " + std::to_string(dim) +
                " has no fragment tiles; use the other arrangement");
  if (family == Family::full) {
    stride = block_bytes = static_cast<size_t>(block_tokens) * padded_dim * size_of(dtype);
    return;
  }
  if (arrangement == Arrangement::fragments) packing = packing_of(*codec);
  for (const Piece& piece : codec->form().pieces) add_planes(piece);
  const bool by_channel = codec->block_tokens() > 1;
  scalar_rows = by_channel ? codec->scalars() / dim * (kTileTokens / codec->block_tokens()) : codec->scalars();
  const size_t scalars = static_cast<size_t>(scalar_rows) * (by_channel ? padded_dim : kTileTokens) * scalar_bytes();
  stride = block_bytes = scalars_offset + scalars;
  if (arrangement == Arrangement::fragments && role == Role::values) codes_offset = scalars, scalars_offset = 0;
}

void Layout::add_planes(const Piece& piece) {
  const bool halves = family == Family::turboquant_rvq && piece.bits > 6;
  const size_t padded = static_cast<size_t>(piece.count + kLanes - 1) / kLanes * kLanes;
  for (int shift = 0; shift < piece.bits;) {
    int width = halves && shift == 0 ? 4 : 8;
    while (width > piece.bits - shift) width /= 2;
    planes[plane_count++] = {width, shift, scalars_offset, piece.first, piece.count};
    scalars_offset += kTileTokens * padded * width / 8;
    shift += width;
  }
}

size_t Layout::scalar_bytes() const { return static_cast<size_t>(bits_of(codec->form().scalar_form)) / 8; }

// index: of the codec's scalars; t: the token, or the first of its group.
size_t Layout::scalar_offset(int index, int t) const {
  if (codec->block_tokens() > 1) {
    const int row = t / codec->block_tokens() * (codec->scalars() / dim) + index / dim;
    return scalars_offset + (static_cast<size_t>(row) * padded_dim + index % dim) * scalar_bytes();
  }
  const int place = arrangement == Arrangement::fragments ? scalar_index(t) : t;
  return scalars_offset + (static_cast<size_t>(index) * kTileTokens + place) * scalar_bytes();
}

void Layout::put_fragments(uint8_t* block, int t, std::span<const Code> codes) const {
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

void Layout::get_fragments(const uint8_t* block, int t, std::span<Code> codes) const {
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
    codes[d] = static_cast<Code>(code_of_stored(packing, code));
  }
}

void Layout::put_planes(uint8_t* block, int t, std::span<const Code> codes) const {
  for (const Plane& plane : std::span(planes, plane_count)) {
    const unsigned mask = (1u << plane.bits) - 1;
    for (int i = 0; i < plane.count; ++i) {
      const BitPlace at = place(role, plane.bits, t, i);
      uint8_t& byte = block[plane.offset + at.byte];
      byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) | ((codes[plane.first + i] >> plane.shift) & mask) << at.shift);
    }
  }
}

void Layout::get_planes(const uint8_t* block, int t, std::span<Code> codes) const {
  std::fill(codes.begin(), codes.end(), Code{0});
  for (const Plane& plane : std::span(planes, plane_count))
    for (int i = 0; i < plane.count; ++i) {
      const BitPlace at = place(role, plane.bits, t, i);
      const unsigned field = (block[plane.offset + at.byte] >> at.shift) & ((1u << plane.bits) - 1);
      codes[plane.first + i] = static_cast<Code>(codes[plane.first + i] | field << plane.shift);
    }
}

void Layout::put(uint8_t* blocks, int64_t token, std::span<const Code> codes, std::span<const float> scalars) const {
  uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  for (int i = 0; i < codec->block_tokens(); ++i) {
    const auto one = codes.subspan(static_cast<size_t>(i) * codec->codes(), codec->codes());
    arrangement == Arrangement::fragments ? put_fragments(block, t + i, one) : put_planes(block, t + i, one);
  }
  for (int i = 0; i < codec->scalars(); ++i) {
    const uint16_t stored = encode_scalar(codec->form().scalar_form, scalars[i]);
    std::memcpy(block + scalar_offset(i, t), &stored, scalar_bytes());
  }
}

void Layout::get(const uint8_t* blocks, int64_t token, std::span<Code> codes, std::span<float> scalars) const {
  const uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  for (int i = 0; i < codec->block_tokens(); ++i) {
    const auto one = codes.subspan(static_cast<size_t>(i) * codec->codes(), codec->codes());
    arrangement == Arrangement::fragments ? get_fragments(block, t + i, one) : get_planes(block, t + i, one);
  }
  for (int i = 0; i < codec->scalars(); ++i) {
    uint16_t stored = 0;
    std::memcpy(&stored, block + scalar_offset(i, t), scalar_bytes());
    scalars[i] = decode_scalar(codec->form().scalar_form, stored);
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
  std::vector<Code> codes(static_cast<size_t>(codec->block_tokens()) * codec->codes());
  std::vector<float> scalars(codec->scalars());
  get(blocks, token, codes, scalars);
  codec->decode(codes, scalars, x);
}

}  // namespace tersor::codec
