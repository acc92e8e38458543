// Weights into the packed layout and back, one panel or row at a time.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/weight_codes.h"

namespace tersor::kernels {
namespace {

struct Plane {
  int bits, shift;  // of a code
};
struct Planes {
  Plane planes[2];
  int count;
};

constexpr Planes planes_of(int bits) {
  switch (bits) {
    case 3: return {{{2, 0}, {1, 2}}, 2};
    case 5: return {{{4, 0}, {1, 4}}, 2};
    case 6: return {{{4, 0}, {2, 4}}, 2};
    default: return {{{bits, 0}, {0, 0}}, 1};
  }
}

// The 4 bytes of each row of the unit's planes that belong to one lane; `lane` points at the first of them.
template <int kBits>
void write_lane(const uint8_t (&codes)[32], uint8_t* lane) {
  constexpr Planes all = planes_of(kBits);
#pragma GCC unroll 2
  for (int p = 0; p < all.count; ++p) {
    const int bits = all.planes[p].bits, shift = all.planes[p].shift, fields = 8 / bits;
    for (int row = 0; row < 8 / fields; ++row, lane += 64) {
      for (int j = 0; j < 4; ++j) {
        unsigned byte = 0;
        for (int f = 0; f < fields; ++f) byte |= ((codes[4 * (row * fields + f) + j] >> shift) & ((1u << bits) - 1)) << (bits * f);
        lane[j] = static_cast<uint8_t>(byte);
      }
    }
  }
}

template <int kBits>
void read_lane(const uint8_t* lane, uint8_t (&codes)[32]) {
  constexpr Planes all = planes_of(kBits);
  std::fill_n(codes, 32, uint8_t{0});
  for (int p = 0; p < all.count; ++p) {
    const int bits = all.planes[p].bits, shift = all.planes[p].shift, fields = 8 / bits;
    for (int row = 0; row < 8 / fields; ++row, lane += 64)
      for (int j = 0; j < 4; ++j)
        for (int f = 0; f < fields; ++f)
          codes[4 * (row * fields + f) + j] |= static_cast<uint8_t>(((lane[j] >> (bits * f)) & ((1u << bits) - 1)) << shift);
  }
}

void copy_number(Dtype from_type, const void* from, size_t i, Dtype to_type, uint8_t* to) {
  if (from_type == to_type) {
    std::memcpy(to, static_cast<const char*>(from) + i * size_of(from_type), size_of(to_type));
  } else {
    const float value = number_at(from_type, from, i);
    std::memcpy(to, &value, sizeof value);
  }
}

// One lane's scale of group g, and its bias where there is one.
void write_scale(const LinearMatrix& m, const PackedMatrix& shape, size_t row, size_t g, bool nan_code, uint8_t* scales) {
  const size_t at = row * shape.groups() + g, lane = row % kPackedRows;
  if (m.coding != Coding::affine) {
    scales[lane] = nan_code ? 255 : static_cast<const uint8_t*>(m.scales)[at];
    return;
  }
  const size_t size = size_of(shape.type);
  copy_number(m.scale_type, m.scales, at, shape.type, scales + lane * size);
  copy_number(m.bias_type, m.biases, at, shape.type, scales + (kPackedRows + lane) * size);
}

template <int kBits>
void pack(const LinearMatrix& m, const PackedMatrix& shape, size_t panel, uint8_t* to) {
  for (size_t lane = 0; lane < kPackedRows && panel * kPackedRows + lane < m.out; ++lane) {
    const size_t row = panel * kPackedRows + lane;
    const auto* words = static_cast<const uint32_t*>(m.weight) + row * (m.in * kBits / 32);
    for (size_t g = 0; g < shape.groups(); ++g) {
      uint8_t codes[32];
      bool nan = false;
      for (size_t u = 0; u < shape.units(); ++u, words += kBits) {
        for_each_code<kBits>(words, [&](int i, uint32_t code) { codes[i] = static_cast<uint8_t>(code); });
        write_lane<kBits>(codes, to + shape.units_at(g) + u * shape.unit_bytes() + 4 * lane);
        if (m.coding == Coding::mxfp8) nan = std::any_of(codes, codes + 32, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
      }
      write_scale(m, shape, row, g, nan, to + shape.scales_at(g));
    }
  }
}

template <class T>
void pack_dense(const LinearMatrix& m, size_t panel, T* to) {
  const size_t first = panel * kPackedRows, rows = std::min(kPackedRows, m.out - first);
  const T* from = static_cast<const T*>(m.weight) + first * m.in;
  for (size_t k = 0; k < m.in; ++k)
    for (size_t lane = 0; lane < rows; ++lane) to[k * kPackedRows + lane] = from[lane * m.in + k];
}

template <int kBits>
void unpack(const PackedMatrix& m, size_t row, float* out) {
  const size_t lane = row % kPackedRows;
  const uint8_t* const panel = m.data + row / kPackedRows * m.panel_bytes();
  const bool affine = m.coding == Coding::affine;
  for (size_t g = 0; g < m.groups(); ++g) {
    const uint8_t* const scales = panel + m.scales_at(g);
    const float scale = affine ? number_at(m.type, scales, lane) : e8m0_value(scales[lane]);
    const float bias = affine ? number_at(m.type, scales, kPackedRows + lane) : 0;
    for (size_t u = 0; u < m.units(); ++u) {
      uint8_t codes[32];
      read_lane<kBits>(panel + m.units_at(g) + u * m.unit_bytes() + 4 * lane, codes);
      for (const uint8_t code : codes) *out++ = affine ? scale * static_cast<float>(code) + bias : scale * mx_value(m.coding, code);
    }
  }
}

void unpack_dense(const PackedMatrix& m, size_t row, float* out) {
  const uint8_t* const panel = m.data + row / kPackedRows * m.panel_bytes();
  for (size_t k = 0; k < m.in; ++k) out[k] = number_at(m.type, panel, k * kPackedRows + row % kPackedRows);
}

template <class F>
void with_bits(int bits, F&& f) {
  switch (bits) {
    case 2: return f.template operator()<2>();
    case 3: return f.template operator()<3>();
    case 4: return f.template operator()<4>();
    case 5: return f.template operator()<5>();
    case 6: return f.template operator()<6>();
    default: return f.template operator()<8>();
  }
}

}  // namespace

PackedMatrix packed_shape(const LinearMatrix& m, bool integers) {
  const bool possible = m.bits && m.coding != Coding::mxfp8;
  const Dtype type = !m.bits ? m.weight_type : m.scale_type == m.bias_type ? m.scale_type : Dtype::f32;
  return {nullptr, m.bits, m.group, type, m.out, m.in, m.coding, integers && possible};
}

size_t PackedMatrix::panel_bytes() const {
  if (!bits) return (in * kPackedRows * size_of(type) + 63) & ~size_t{63};
  if (coding == Coding::affine) return groups() * record_bytes();
  return groups() * unit_bytes() + (groups() + 3) / 4 * 64;
}

size_t PackedMatrix::units_at(size_t g) const {
  return coding == Coding::affine ? g * record_bytes() : g * unit_bytes() + (g / 4 + 1) * 64;
}

size_t PackedMatrix::scales_at(size_t g) const {
  return coding == Coding::affine ? units_at(g) + units() * unit_bytes() : g / 4 * (4 * unit_bytes() + 64) + g % 4 * kPackedRows;
}

void pack_panel(const LinearMatrix& m, size_t panel, uint8_t* to) {
  const PackedMatrix shape = packed_shape(m, true);
  std::memset(to, 0, shape.panel_bytes());
  if (m.bits) {
    with_bits(m.bits, [&]<int kBits>() { pack<kBits>(m, shape, panel, to); });
  } else if (m.weight_type == Dtype::f32) {
    pack_dense(m, panel, reinterpret_cast<uint32_t*>(to));
  } else {
    pack_dense(m, panel, reinterpret_cast<uint16_t*>(to));
  }
}

void unpack_row(const PackedMatrix& m, size_t row, float* out) {
  if (!m.bits) return unpack_dense(m, row, out);
  with_bits(m.bits, [&]<int kBits>() { unpack<kBits>(m, row, out); });
}

}  // namespace tersor::kernels
