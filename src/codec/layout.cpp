#include "codec/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/fragment_wide.h"
#include "codec/levels.h"
#include "codec/microscaling.h"

namespace tersor::codec {
namespace {

int pad(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

void put_scalar(ScalarForm form, float value, uint8_t* to) {
  if (form == ScalarForm::exponent) {
    *to = encode_exponent(value);
  } else {
    const uint16_t stored = form == ScalarForm::norm ? encode_norm(value) : encode_scale(value);
    std::memcpy(to, &stored, 2);
  }
}
float get_scalar(ScalarForm form, const uint8_t* from) {
  if (form == ScalarForm::exponent) return decode_exponent(*from);
  uint16_t stored;
  std::memcpy(&stored, from, 2);
  return form == ScalarForm::norm ? decode_norm(stored) : decode_scale(stored);
}

Packing packing_of(const Codec& codec) {
  const int bits = codec.spec().bits;
  if (codec.family() == Family::affine) return bits == 2 ? Packing::plain2 : bits == 4 ? Packing::plain4 : Packing::plain8;
  return bits == 1 ? Packing::sign1 : bits == 2 ? Packing::nibble2 : bits == 3 ? Packing::nibble3 : Packing::mirror4;
}
FragmentCode fragment_code(Packing packing, int bits) { return {packing, bits - packing_bits(packing)}; }

}  // namespace

bool Layout::fits_fragments(const Codec& codec) {
  const Spec& spec = codec.spec();
  if (codec.dim() % kLanes != 0) return false;
  switch (codec.family()) {
    case Family::full: return codec.dtype() != Dtype::f32;
    case Family::affine: return spec.axis == Axis::token && !spec.rule && (spec.bits == 2 || spec.bits == 4 || spec.bits == 8);
    case Family::turboquant: return spec.bits <= 6 && resolved(spec.scalar, codec.role()) == resolved(ScalarRule::automatic, codec.role());
    default: return false;
  }
}

Layout::Layout(std::shared_ptr<const Codec> c, int full_block_tokens, Arrangement a)
    : codec(std::move(c)),
      family(codec->family()),
      role(codec->role()),
      dtype(codec->dtype()),
      arrangement(a),
      dim(codec->dim()),
      padded_dim(pad(dim)),
      codes(codec->codes()),
      bits(codec->spec().bits),
      group(codec->spec().group),
      groups(codec->groups()),
      block_tokens(family != Family::full                  ? kTileTokens
                   : arrangement == Arrangement::fragments ? kFragmentFullTokens
                                                           : full_block_tokens),
      scalar_rows(by_channel() ? codec->scalars() / dim * (kTileTokens / codec->block_tokens()) : codec->scalars()) {
  if (arrangement == Arrangement::fragments && !fits_fragments(*codec))
    throw Error("codec " + codec->spec().str() + " of head size " + std::to_string(dim) +
                " has no fragment tiles; use the other arrangement");
  if (family == Family::full) {
    stride = block_bytes = static_cast<size_t>(block_tokens) * padded_dim * size_of(dtype);
    return;
  }
  if (arrangement == Arrangement::fragments) packing = packing_of(*codec);
  make_parts();
}

// Where the parts' planes lie, then the scalars.
void Layout::make_parts() {
  const auto& pieces = codec->form().pieces;
  size_t offset = 0;
  padded_dim = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    parts_.push_back(Layout(*this, Part{}, i, offset));
    padded_dim = std::max(padded_dim, parts_.back().stored_begin + parts_.back().padded_dim);
  }
  const size_t scalars = block_scalars() * scalar_bytes();
  scalars_offset = offset;
  stride = block_bytes = offset + scalars;
  for (Layout& part : parts_) {
    part.scalars_offset = offset + static_cast<size_t>(part.first_scalar) * kTileTokens * scalar_bytes();
    part.block_bytes = part.stride = block_bytes;
  }
  if (arrangement == Arrangement::fragments && role == Role::values) codes_offset = scalars, scalars_offset = 0;
  if (parts_.size() > 1 || parts_.front().dim != dim) return;
  const Layout& only = parts_.front();
  plane_count = only.plane_count, planes[0] = only.planes[0], planes[1] = only.planes[1];
  table = only.table, levels = only.levels;
  parts_.clear();
}

Layout::Layout(const Layout& whole, Part, size_t piece, size_t& offset)
    : codec(whole.codec),
      family(whole.family),
      role(whole.role),
      dtype(whole.dtype),
      arrangement(whole.arrangement),
      packing(whole.packing),
      bits(whole.codec->form().pieces[piece].bits),
      group(whole.group),
      groups(whole.groups),
      block_tokens(whole.block_tokens),
      table(codec->table(static_cast<int>(piece))) {
  const Piece& p = codec->form().pieces[piece];
  dim = indexed() ? whole.dim : p.count, padded_dim = pad(dim);
  codes = p.count, first_code = p.first;
  stored_begin = pad(p.stored_begin);
  first_scalar = p.scalar, scalar_rows = whole.codec->form().pieces.size() > 1 ? 1 : whole.scalar_rows;
  if (table) levels = table->levels.data();
  int shift = 0;
  for (const int width : {8, 4, 2, 1})
    if (bits & width) {
      planes[plane_count++] = {width, shift, offset};
      offset += static_cast<size_t>(kTileTokens) * (indexed() ? codes : padded_dim) * width / 8;
      shift += width;
    }
}

// index: of the codec's scalars; t: the token, or the first of its group.
size_t Layout::scalar_offset(int index, int t) const {
  if (by_channel()) {
    const int row = t / codec->block_tokens() * (codec->scalars() / dim) + index / dim;
    return scalars_offset + (static_cast<size_t>(row) * padded_dim + index % dim) * scalar_bytes();
  }
  const int at = arrangement == Arrangement::fragments ? scalar_index(t) : t;
  return scalars_offset + (static_cast<size_t>(index) * kTileTokens + at) * scalar_bytes();
}

BitPlace Layout::place(int width, int t, int code) const {
  return indexed() ? index_place(width, t, code) : role == Role::keys ? key_place(width, t, code) : value_place(width, t, code);
}

void Layout::put_fragments(uint8_t* block, int t, std::span<const Code> codes) const {
  const FragmentCode form = fragment_code(packing, bits);
  const size_t unit_bytes = static_cast<size_t>(form.words()) * 128;
  for (int d = 0; d < dim; ++d) {
    const FragmentPlace at = role == Role::keys ? key_fragment(dim, t, d) : value_fragment(t, d);
    const unsigned code = form.stored(codes[d]);
    for (int bit = 0; bit < bits; ++bit) {
      const BitOfWord to = form.place(at.reg, at.byte, bit);
      uint8_t& byte = block[codes_offset + at.unit * unit_bytes + form.offset(at.lane, to.word) + to.shift / 8];
      byte = static_cast<uint8_t>((byte & ~(1u << to.shift % 8)) | (code >> bit & 1u) << to.shift % 8);
    }
  }
}

void Layout::get_fragments(const uint8_t* block, int t, std::span<Code> codes) const {
  const FragmentCode form = fragment_code(packing, bits);
  const size_t unit_bytes = static_cast<size_t>(form.words()) * 128;
  for (int d = 0; d < dim; ++d) {
    const FragmentPlace at = role == Role::keys ? key_fragment(dim, t, d) : value_fragment(t, d);
    unsigned code = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const BitOfWord from = form.place(at.reg, at.byte, bit);
      const uint8_t byte = block[codes_offset + at.unit * unit_bytes + form.offset(at.lane, from.word) + from.shift / 8];
      code |= (byte >> from.shift % 8 & 1u) << bit;
    }
    codes[d] = static_cast<Code>(form.code_of(code));
  }
}

void Layout::put_planes(uint8_t* block, int t, std::span<const Code> codes_of_token) const {
  for (int p = 0; p < plane_count; ++p) {
    const unsigned mask = (1u << planes[p].bits) - 1;
    for (int i = 0; i < codes; ++i) {
      const BitPlace at = place(planes[p].bits, t, i);
      uint8_t& byte = block[planes[p].offset + at.byte];
      byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) |
                                  ((static_cast<unsigned>(codes_of_token[first_code + i]) >> planes[p].shift) & mask) << at.shift);
    }
  }
}

void Layout::get_planes(const uint8_t* block, int t, std::span<Code> codes_of_token) const {
  for (int i = 0; i < codes; ++i) {
    unsigned code = 0;
    for (int p = 0; p < plane_count; ++p) {
      const BitPlace at = place(planes[p].bits, t, i);
      code |= ((block[planes[p].offset + at.byte] >> at.shift) & ((1u << planes[p].bits) - 1)) << planes[p].shift;
    }
    codes_of_token[first_code + i] = static_cast<Code>(code);
  }
}

void Layout::put(uint8_t* blocks, int64_t token, std::span<const Code> all, std::span<const float> scalars) const {
  uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  for (int i = 0; i < codec->block_tokens(); ++i) {
    const auto one = all.subspan(static_cast<size_t>(i) * codes, codes);
    if (arrangement == Arrangement::fragments)
      put_fragments(block, t + i, one);
    else
      for (const Layout& part : parts()) part.put_planes(block, t + i, one);
  }
  for (int i = 0; i < codec->scalars(); ++i) put_scalar(codec->form().scalar_form, scalars[i], block + scalar_offset(i, t));
}

void Layout::get(const uint8_t* blocks, int64_t token, std::span<Code> all, std::span<float> scalars) const {
  const uint8_t* block = blocks + token / kTileTokens * stride;
  const int t = static_cast<int>(token % kTileTokens);
  for (int i = 0; i < codec->block_tokens(); ++i) {
    const auto one = all.subspan(static_cast<size_t>(i) * codes, codes);
    if (arrangement == Arrangement::fragments)
      get_fragments(block, t + i, one);
    else
      for (const Layout& part : parts()) part.get_planes(block, t + i, one);
  }
  for (int i = 0; i < codec->scalars(); ++i) scalars[i] = get_scalar(codec->form().scalar_form, block + scalar_offset(i, t));
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
  std::vector<Code> token_codes(static_cast<size_t>(codec->block_tokens()) * codes);
  std::vector<float> scalars(codec->scalars());
  get(blocks, token, token_codes, scalars);
  codec->decode(token_codes, scalars, x);
}

}  // namespace tersor::codec
