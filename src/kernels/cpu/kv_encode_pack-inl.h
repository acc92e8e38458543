// What every way of encoding does: cleaned numbers, affine codes, and codes into a block's bit planes.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_ENCODE_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_ENCODE_PACK_INL_H_
#undef TERSOR_KERNELS_CPU_KV_ENCODE_PACK_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_ENCODE_PACK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "codec/layout.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_encode_batch.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace encode {
namespace hn = hwy::HWY_NAMESPACE;

// NaN becomes 0, magnitudes end at half precision's range.
HWY_INLINE levels::VF Clean(levels::VF v) {
  const levels::F d;
  const auto limit = hn::Set(d, codec::kInputMax), number = hn::IfThenElseZero(hn::Eq(v, v), v);
  return hn::Min(hn::Max(number, hn::Neg(limit)), limit);
}

// The affine codes, up to `top`, of numbers in groups of these scales and biases as they are stored; a constant group has scale 0.
HWY_INLINE levels::VI AffineCodes(levels::VF x, levels::VF scale, levels::VF bias, levels::VF top) {
  const levels::F d;
  const auto code = hn::Round(hn::Div(hn::Sub(x, bias), scale));
  return hn::ConvertTo(levels::I(), hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), hn::Min(hn::Max(code, hn::Zero(d)), top)));
}

// One plane's bits of a vector's codes, whose bytes have some room behind them. Keys: four dims of a token are one 32-bit word; `first` is
// the first dim, a multiple of 8.
template <int kBits>
void PackKeyPlane(const codec::Plane& plane, int token, size_t first, size_t dims, const uint8_t* codes, uint8_t* block) {
  uint32_t mask = ((1u << kBits) - 1) * 0x01010101u;
  for (size_t i = 0; i < dims; i += 4) {
    if (dims - i < 4) mask &= (1u << 8 * (dims - i)) - 1;
    const auto at = codec::key_place(kBits, token, static_cast<int>(first + i));
    uint32_t four, word;
    std::memcpy(&four, codes + i, 4);
    std::memcpy(&word, block + plane.offset + at.byte, 4);
    word = (word & ~(mask << at.shift)) | ((four >> plane.shift) & mask) << at.shift;
    std::memcpy(block + plane.offset + at.byte, &word, 4);
  }
}
// Values: one byte in each lane of a row.
template <int kBits>
void PackValuePlane(const codec::Plane& plane, int token, size_t dims, const uint8_t* codes, uint8_t* block) {
  using levels::I;
  const I d;
  const hn::Rebind<uint8_t, I> narrow;
  const auto at = codec::value_place(kBits, token, 0);
  const int byte = token % 4, shift = 8 * byte + at.shift;
  const auto mask = hn::Set(d, (1 << kBits) - 1), place = hn::ShiftLeftSame(mask, shift);
  for (size_t i = 0; i < dims; i += hn::Lanes(d)) {
    const size_t row = codec::value_place(kBits, token, static_cast<int>(i)).byte - byte;
    int32_t* const lanes = reinterpret_cast<int32_t*>(block + plane.offset + row);
    const auto bits = hn::And(hn::ShiftRightSame(hn::PromoteTo(d, hn::LoadU(narrow, codes + i)), plane.shift), mask);
    const auto changed = hn::Or(hn::AndNot(place, hn::LoadU(d, lanes)), hn::ShiftLeftSame(bits, shift));
    hn::BlendedStore(changed, hn::FirstN(d, dims - i), d, lanes);
  }
}

// All planes of keys, dims [first, first + dims).
inline void PackKeys(const codec::Layout& layout, int token, size_t first, size_t dims, const uint8_t* codes, uint8_t* block) {
  for (int i = 0; i < layout.plane_count; ++i) {
    const codec::Plane& plane = layout.planes[i];
    switch (plane.bits) {
      case 8: PackKeyPlane<8>(plane, token, first, dims, codes, block); break;
      case 4: PackKeyPlane<4>(plane, token, first, dims, codes, block); break;
      case 2: PackKeyPlane<2>(plane, token, first, dims, codes, block); break;
      default: PackKeyPlane<1>(plane, token, first, dims, codes, block); break;
    }
  }
}
inline void PackValues(const codec::Layout& layout, int token, size_t dims, const uint8_t* codes, uint8_t* block) {
  for (int i = 0; i < layout.plane_count; ++i) {
    const codec::Plane& plane = layout.planes[i];
    switch (plane.bits) {
      case 8: PackValuePlane<8>(plane, token, dims, codes, block); break;
      case 4: PackValuePlane<4>(plane, token, dims, codes, block); break;
      case 2: PackValuePlane<2>(plane, token, dims, codes, block); break;
      default: PackValuePlane<1>(plane, token, dims, codes, block); break;
    }
  }
}

// Codes [dim][16] of a batch.
template <bool kKeys>
void Pack(const codec::Layout& layout, const EncodeBatch& batch, const uint8_t* codes) {
  HWY_ALIGN uint8_t row[codec::kMaxDim];
  const size_t dims = layout.dim;
  std::fill(row + dims, row + layout.padded_dim, uint8_t{0});
  for (size_t v = 0; v < batch.count; ++v) {
    for (size_t i = 0; i < dims; ++i) row[i] = codes[i * kEncodeBatch + v];
    if constexpr (kKeys)
      PackKeys(layout, batch.token[v], 0, dims, row, batch.block[v]);
    else
      PackValues(layout, batch.token[v], dims, row, batch.block[v]);
  }
}

}  // namespace encode
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
