#include "codec/layout.h"

#include <cstring>

#include "codec/scalar.h"

namespace tersor::codec {
namespace {

uint16_t encode_scalar(Family family, float value) { return family == Family::turboquant ? encode_norm(value) : encode_scale(value); }
float decode_scalar(Family family, uint16_t bits) { return family == Family::turboquant ? decode_norm(bits) : decode_scale(bits); }

BitPlace place(Role role, int bits, int t, int d) { return role == Role::keys ? key_place(bits, t, d) : value_place(bits, t, d); }

}  // namespace

Layout::Layout(std::shared_ptr<const Codec> c, int full_block_tokens)
    : codec(std::move(c)),
      family(codec->family()),
      role(codec->role()),
      dtype(codec->dtype()),
      dim(codec->dim()),
      padded_dim((dim + kLanes - 1) / kLanes * kLanes),
      bits(codec->spec().bits),
      group(codec->spec().group),
      groups(codec->groups()),
      block_tokens(family == Family::full ? full_block_tokens : kTileTokens),
      levels(codec->levels().data()) {
  if (family == Family::full) {
    block_bytes = static_cast<size_t>(block_tokens) * padded_dim * size_of(dtype);
    return;
  }
  int shift = 0;
  for (const int width : {8, 4, 2, 1})
    if (bits & width) {
      planes[plane_count++] = {width, shift, scalars_offset};
      scalars_offset += static_cast<size_t>(kTileTokens) * padded_dim * width / 8;
      shift += width;
    }
  scalar_rows = family == Family::affine ? 2 * groups : 1;
  block_bytes = scalars_offset + static_cast<size_t>(scalar_rows) * kTileTokens * sizeof(uint16_t);
}

void Layout::put(uint8_t* blocks, int64_t token, std::span<const uint8_t> codes, std::span<const float> scalars) const {
  uint8_t* block = blocks + token / kTileTokens * block_bytes;
  const int t = static_cast<int>(token % kTileTokens);
  for (int p = 0; p < plane_count; ++p) {
    const unsigned mask = (1u << planes[p].bits) - 1;
    for (int d = 0; d < dim; ++d) {
      const BitPlace at = place(role, planes[p].bits, t, d);
      uint8_t& byte = block[planes[p].offset + at.byte];
      byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) | ((codes[d] >> planes[p].shift) & mask) << at.shift);
    }
  }
  for (int row = 0; row < scalar_rows; ++row) {
    const uint16_t stored = encode_scalar(family, scalars[row]);
    std::memcpy(block + scalars_offset + (static_cast<size_t>(row) * kTileTokens + t) * 2, &stored, 2);
  }
}

void Layout::get(const uint8_t* blocks, int64_t token, std::span<uint8_t> codes, std::span<float> scalars) const {
  const uint8_t* block = blocks + token / kTileTokens * block_bytes;
  const int t = static_cast<int>(token % kTileTokens);
  for (int d = 0; d < dim; ++d) {
    unsigned code = 0;
    for (int p = 0; p < plane_count; ++p) {
      const BitPlace at = place(role, planes[p].bits, t, d);
      code |= ((block[planes[p].offset + at.byte] >> at.shift) & ((1u << planes[p].bits) - 1)) << planes[p].shift;
    }
    codes[d] = static_cast<uint8_t>(code);
  }
  for (int row = 0; row < scalar_rows; ++row) {
    uint16_t stored;
    std::memcpy(&stored, block + scalars_offset + (static_cast<size_t>(row) * kTileTokens + t) * 2, 2);
    scalars[row] = decode_scalar(family, stored);
  }
}

void Layout::put_full(uint8_t* blocks, int64_t token, std::span<const float> x) const {
  for (int d = 0; d < dim; ++d) {
    uint8_t* at = blocks + full_index(token, d) * size_of(dtype);
    const uint16_t narrow = dtype == Dtype::f16 ? float_to_half(x[d]) : float_to_bfloat(x[d]);
    if (dtype == Dtype::f32)
      std::memcpy(at, &x[d], 4);
    else
      std::memcpy(at, &narrow, 2);
  }
}

void Layout::get_full(const uint8_t* blocks, int64_t token, std::span<float> x) const {
  for (int d = 0; d < dim; ++d) {
    const uint8_t* at = blocks + full_index(token, d) * size_of(dtype);
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
