// Decodes one tile of 64 tokens of one KV head into floats that stay in the first-level cache.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#undef TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#endif

#include <algorithm>

#include "codec/layout.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace tile_decode {
namespace hn = hwy::HWY_NAMESPACE;
using codec::kLanes;
using codec::kTileTokens;
using levels::F;
using levels::I;
using levels::VF;
using levels::VI;

// Tokens one row of a plane holds, in lanes of vectors: rows of 64 bytes are read as 16 / Lanes vectors.
constexpr size_t kQuads = kTileTokens / 4;

HWY_INLINE VI LoadLanes(const uint8_t* row, size_t lane) {
  const hn::Repartition<uint8_t, I> bytes;
  return hn::BitCast(I(), hn::LoadU(bytes, row + lane * 4));
}

// Field `field` of every byte of a plane row: (bytes >> kBits * field) & mask.
template <int kBits>
HWY_INLINE VI Field(VI row, int field) {
  if constexpr (kBits == 8) {
    return row;
  } else {
    constexpr int kMask = (1 << kBits) - 1;
    return hn::And(hn::ShiftRightSame(row, kBits * field), hn::Set(I(), kMask * 0x01010101));
  }
}

// Rows of one plane by (quad of dims, group of 16 tokens) for keys and (16 dims, quad of tokens) for values.
template <int kBits>
HWY_INLINE VI KeyCodes(const uint8_t* plane, size_t quad, size_t group, size_t lane) {
  if constexpr (kBits == 8)
    return LoadLanes(plane + (quad * 4 + group) * codec::kRowBytes, lane);
  else if constexpr (kBits == 4)
    return Field<4>(LoadLanes(plane + (quad * 2 + group / 2) * codec::kRowBytes, lane), group % 2);
  else if constexpr (kBits == 2)
    return Field<2>(LoadLanes(plane + quad * codec::kRowBytes, lane), group);
  else
    return Field<1>(LoadLanes(plane + quad / 2 * codec::kRowBytes, lane), group + 4 * (quad % 2));
}
template <int kBits>
HWY_INLINE VI ValueCodes(const uint8_t* plane, size_t lanes_of_dims, size_t quad, size_t lane) {
  constexpr size_t kFields = 8 / kBits;
  return Field<kBits>(LoadLanes(plane + (lanes_of_dims * (kQuads / kFields) + quad / kFields) * codec::kRowBytes, lane), quad % kFields);
}

// Codes of kBits bits, put together from their one or two planes; four codes in the bytes of each lane.
template <int kBits, bool kKeys>
HWY_INLINE VI Codes(const uint8_t* low, const uint8_t* high, size_t outer, size_t inner, size_t lane) {
  const auto plane = [&]<int kPlaneBits>(const uint8_t* at) {
    if constexpr (kKeys)
      return KeyCodes<kPlaneBits>(at, outer, inner, lane);
    else
      return ValueCodes<kPlaneBits>(at, outer, inner, lane);
  };
  // Planes come widest first, and the widest holds the low bits: 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2.
  constexpr int kLow = kBits == 8 ? 8 : kBits >= 4 ? 4 : kBits >= 2 ? 2 : 1;
  const VI codes = plane.template operator()<kLow>(low);
  if constexpr (kBits == kLow)
    return codes;
  else
    return hn::Or(codes, hn::ShiftLeft<kLow>(plane.template operator()<kBits - kLow>(high)));
}

template <int kByte>
HWY_INLINE VI Byte(VI codes) {
  if constexpr (kByte == 3)
    return hn::BitCast(I(), hn::ShiftRight<24>(hn::BitCast(hn::RebindToUnsigned<I>(), codes)));
  else
    return hn::And(hn::ShiftRight<8 * kByte>(codes), hn::Set(I(), 0xff));
}

// Codes to numbers. Turboquant: levels, the norm stays apart. Affine: code * scale + bias, both given for the lanes.
template <int kBits>
struct LevelMap {
  levels::Table<kBits> table;
  explicit LevelMap(const codec::Layout& layout) : table(layout.levels) {}
  HWY_INLINE VF operator()(VI codes, VF, VF) const { return table(codes); }
};
struct AffineMap {
  explicit AffineMap(const codec::Layout&) {}
  HWY_INLINE VF operator()(VI codes, VF scale, VF bias) const { return hn::MulAdd(hn::ConvertTo(F(), codes), scale, bias); }
};

// Scales and biases of one tile as floats: [row][64].
inline void DecodeScales(const codec::Layout& layout, const uint8_t* block, float* scales) {
  const uint16_t* stored = reinterpret_cast<const uint16_t*>(block + layout.scalars_offset);
  const hn::Rebind<uint16_t, F> narrow;
  const hn::RebindToUnsigned<F> wide;
  for (int i = 0; i < layout.scalar_rows * kTileTokens; i += static_cast<int>(hn::Lanes(F()))) {
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, stored + i));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(wide, 0x8000u)));
    const auto rest = hn::And(bits, hn::Set(wide, 0x7fffu));
    const auto magnitude = hn::Add(hn::ShiftLeft<14>(rest), hn::Set(wide, codec::kScalarExponentShift));
    const auto value = hn::IfThenZeroElse(hn::Eq(rest, hn::Zero(wide)), hn::Or(sign, magnitude));
    hn::StoreU(hn::BitCast(F(), value), F(), scales + i);
  }
}

inline void DecodeNorms(const codec::Layout& layout, const uint8_t* block, float* norms) {
  const uint16_t* stored = reinterpret_cast<const uint16_t*>(block + layout.scalars_offset);
  const hn::Rebind<uint16_t, F> narrow;
  const hn::RebindToUnsigned<F> wide;
  for (int i = 0; i < kTileTokens; i += static_cast<int>(hn::Lanes(F()))) {
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, stored + i));
    const auto value = hn::Add(hn::ShiftLeft<13>(bits), hn::Set(wide, codec::kScalarExponentShift));
    hn::StoreU(hn::BitCast(F(), hn::IfThenZeroElse(hn::Eq(bits, hn::Zero(wide)), value)), F(), norms + i);
  }
}

// Keys to tile [padded dim][64].
template <int kBits, class Map>
void DecodeKeys(const codec::Layout& layout, const uint8_t* block, const float* scales, float* tile) {
  const Map map(layout);
  const uint8_t* low = block + layout.planes[0].offset;
  const uint8_t* high = block + layout.planes[1].offset;
  for (int quad = 0; quad < layout.padded_dim / 4; ++quad) {
    const int group_of_dims = std::min(quad * 4 / layout.group, layout.groups - 1);
    for (size_t group = 0; group < kTileTokens / kLanes; ++group)
      for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(F())) {
        VF scale = hn::Zero(F()), bias = scale;
        const size_t at = group * kLanes + lane;
        if constexpr (std::is_same_v<Map, AffineMap>) {
          scale = hn::LoadU(F(), scales + group_of_dims * kTileTokens + at);
          bias = hn::LoadU(F(), scales + (layout.groups + group_of_dims) * kTileTokens + at);
        }
        const VI codes = Codes<kBits, true>(low, high, quad, group, lane);
        float* to = tile + quad * 4 * kTileTokens + at;
        hn::StoreU(map(Byte<0>(codes), scale, bias), F(), to);
        hn::StoreU(map(Byte<1>(codes), scale, bias), F(), to + kTileTokens);
        hn::StoreU(map(Byte<2>(codes), scale, bias), F(), to + 2 * kTileTokens);
        hn::StoreU(map(Byte<3>(codes), scale, bias), F(), to + 3 * kTileTokens);
      }
  }
}

// Values to tile [64][padded dim].
template <int kBits, class Map>
void DecodeValues(const codec::Layout& layout, const uint8_t* block, const float* scales, float* tile) {
  const Map map(layout);
  const uint8_t* low = block + layout.planes[0].offset;
  const uint8_t* high = block + layout.planes[1].offset;
  const size_t ld = layout.padded_dim;
  for (size_t dims = 0; dims < ld / kLanes; ++dims) {
    const int group_of_dims = std::min(static_cast<int>(dims * kLanes) / layout.group, layout.groups - 1);
    const float* scale = scales + group_of_dims * kTileTokens;
    const float* bias = scales + (layout.groups + group_of_dims) * kTileTokens;
    for (size_t quad = 0; quad < kQuads; ++quad)
      for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(F())) {
        const VI codes = Codes<kBits, false>(low, high, dims, quad, lane);
        float* to = tile + quad * 4 * ld + dims * kLanes + lane;
        const auto put = [&]<int kByte>() {
          VF s = hn::Zero(F()), b = s;
          if constexpr (std::is_same_v<Map, AffineMap>) s = hn::Set(F(), scale[quad * 4 + kByte]), b = hn::Set(F(), bias[quad * 4 + kByte]);
          hn::StoreU(map(Byte<kByte>(codes), s, b), F(), to + kByte * ld);
        };
        put.template operator()<0>();
        put.template operator()<1>();
        put.template operator()<2>();
        put.template operator()<3>();
      }
  }
}

template <int kBits, class Map>
void DecodeCodes(const codec::Layout& layout, const uint8_t* block, const float* scales, float* tile) {
  if (layout.role == codec::Role::keys)
    DecodeKeys<kBits, Map>(layout, block, scales, tile);
  else
    DecodeValues<kBits, Map>(layout, block, scales, tile);
}

// `full` keys: rows of kBlock tokens. Small blocks need short vectors, or each number would be converted by itself.
template <Dtype kType, size_t kBlock>
void DecodeFullKeys(const codec::Layout& layout, const uint8_t* blocks, int tokens, float* tile) {
  const hn::CappedTag<float, kBlock> d;
  for (int first = 0; first < tokens; first += static_cast<int>(kBlock), blocks += layout.block_bytes)
    for (int row = 0; row < layout.padded_dim; ++row)
      for (size_t i = 0; i < kBlock; i += hn::Lanes(d))
        hn::StoreU(LoadAsFloat<kType>(d, blocks, static_cast<size_t>(row) * kBlock + i), d, tile + row * kTileTokens + first + i);
}

// `full` values: rows are whole vectors of dims. Returns whether all numbers are finite.
template <Dtype kType>
bool DecodeFullValues(const codec::Layout& layout, const uint8_t* blocks, int tokens, float* tile) {
  const size_t row = layout.padded_dim;
  VF odd = hn::Zero(F());
  for (int first = 0; first < tokens; first += layout.block_tokens, blocks += layout.block_bytes)
    for (size_t i = 0; i < row * layout.block_tokens; i += hn::Lanes(F())) {
      const VF numbers = LoadAsFloat<kType>(F(), blocks, i);
      odd = hn::MulAdd(numbers, hn::Zero(F()), odd);
      hn::StoreU(numbers, F(), tile + first * row + i);
    }
  return hn::AllTrue(F(), hn::Eq(odd, hn::Zero(F())));
}

template <Dtype kType>
bool DecodeFull(const codec::Layout& layout, const uint8_t* blocks, int tokens, float* tile) {
  if (layout.role == codec::Role::values) return DecodeFullValues<kType>(layout, blocks, tokens, tile);
  switch (layout.block_tokens) {
    case 4: DecodeFullKeys<kType, 4>(layout, blocks, tokens, tile); break;
    case 8: DecodeFullKeys<kType, 8>(layout, blocks, tokens, tile); break;
    default: DecodeFullKeys<kType, 16>(layout, blocks, tokens, tile); break;
  }
  return true;  // only values are asked
}

}  // namespace tile_decode

/// What a decoded tile is besides its numbers.
struct TileFacts {
  bool finite = true;            // no infinity or NaN among the numbers
  const float* norms = nullptr;  // [64]: numbers of token t are to be multiplied by norms[t]; null: by 1
};

/// Decodes `tokens` (1..64) tokens from the start of `blocks` into `tile`: keys [padded dim][64], values [64][padded dim].
/// scalars: [max(1, scalar_rows)][64] floats of scratch, which the result may point to.
inline TileFacts DecodeTile(const codec::Layout& layout, const uint8_t* blocks, int tokens, float* scalars, float* tile) {
  using namespace tile_decode;
  TileFacts facts;
  if (layout.family == codec::Family::full) {
    switch (layout.dtype) {
      case Dtype::f16: facts.finite = DecodeFull<Dtype::f16>(layout, blocks, tokens, tile); break;
      case Dtype::bf16: facts.finite = DecodeFull<Dtype::bf16>(layout, blocks, tokens, tile); break;
      case Dtype::f32: facts.finite = DecodeFull<Dtype::f32>(layout, blocks, tokens, tile); break;
    }
  } else if (layout.family == codec::Family::turboquant) {
    DecodeNorms(layout, blocks, scalars);
    facts.norms = scalars;
    switch (layout.bits) {
      case 1: DecodeCodes<1, LevelMap<1>>(layout, blocks, nullptr, tile); break;
      case 2: DecodeCodes<2, LevelMap<2>>(layout, blocks, nullptr, tile); break;
      case 3: DecodeCodes<3, LevelMap<3>>(layout, blocks, nullptr, tile); break;
      case 4: DecodeCodes<4, LevelMap<4>>(layout, blocks, nullptr, tile); break;
      case 5: DecodeCodes<5, LevelMap<5>>(layout, blocks, nullptr, tile); break;
      default: DecodeCodes<6, LevelMap<6>>(layout, blocks, nullptr, tile); break;
    }
  } else {
    DecodeScales(layout, blocks, scalars);
    switch (layout.bits) {
      case 2: DecodeCodes<2, AffineMap>(layout, blocks, scalars, tile); break;
      case 3: DecodeCodes<3, AffineMap>(layout, blocks, scalars, tile); break;
      case 4: DecodeCodes<4, AffineMap>(layout, blocks, scalars, tile); break;
      case 5: DecodeCodes<5, AffineMap>(layout, blocks, scalars, tile); break;
      case 6: DecodeCodes<6, AffineMap>(layout, blocks, scalars, tile); break;
      default: DecodeCodes<8, AffineMap>(layout, blocks, scalars, tile); break;
    }
  }
  return facts;
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
