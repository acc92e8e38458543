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

template <int kBits>
void pack(const LinearMatrix& m, const PackedMatrix& shape, size_t panel, uint8_t* to) {
  const size_t groups = shape.groups(), units = static_cast<size_t>(m.group) / 32, size = size_of(shape.scale_type);
  std::memset(to, 0, shape.panel_bytes());
  for (size_t lane = 0; lane < kPackedRows && panel * kPackedRows + lane < m.out; ++lane) {
    const size_t row = panel * kPackedRows + lane;
    const auto* words = static_cast<const uint32_t*>(m.weight) + row * (m.in * kBits / 32);
    uint8_t* record = to;
    for (size_t g = 0; g < groups; ++g, record += shape.record_bytes()) {
      uint8_t codes[32];
      for (size_t u = 0; u < units; ++u, words += kBits) {
        for_each_code<kBits>(words, [&](int i, uint32_t code) { codes[i] = static_cast<uint8_t>(code); });
        write_lane<kBits>(codes, record + u * shape.unit_bytes() + 4 * lane);
      }
      uint8_t* const scales = record + units * shape.unit_bytes();
      copy_number(m.scale_type, m.scales, row * groups + g, shape.scale_type, scales + lane * size);
      copy_number(m.bias_type, m.biases, row * groups + g, shape.scale_type, scales + (kPackedRows + lane) * size);
    }
  }
}

template <int kBits>
void unpack(const PackedMatrix& m, size_t row, float* out) {
  const size_t lane = row % kPackedRows, units = static_cast<size_t>(m.group) / 32;
  const uint8_t* record = m.data + row / kPackedRows * m.panel_bytes();
  for (size_t g = 0; g < m.groups(); ++g, record += m.record_bytes()) {
    const uint8_t* const scales = record + units * m.unit_bytes();
    const float scale = number_at(m.scale_type, scales, lane), bias = number_at(m.scale_type, scales, kPackedRows + lane);
    for (size_t u = 0; u < units; ++u) {
      uint8_t codes[32];
      read_lane<kBits>(record + u * m.unit_bytes() + 4 * lane, codes);
      for (const uint8_t code : codes) *out++ = scale * static_cast<float>(code) + bias;
    }
  }
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

PackedMatrix packed_shape(const LinearMatrix& m) {
  return {nullptr, m.bits, m.group, m.scale_type == m.bias_type ? m.scale_type : Dtype::f32, m.out, m.in};
}

void pack_panel(const LinearMatrix& m, size_t panel, uint8_t* to) {
  with_bits(m.bits, [&]<int kBits>() { pack<kBits>(m, packed_shape(m), panel, to); });
}

void unpack_row(const PackedMatrix& m, size_t row, float* out) {
  with_bits(m.bits, [&]<int kBits>() { unpack<kBits>(m, row, out); });
}

}  // namespace tersor::kernels
