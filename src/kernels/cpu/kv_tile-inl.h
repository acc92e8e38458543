// Decodes one tile of 64 tokens of one KV head into floats that stay in the first-level cache.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#undef TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_TILE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "codec/layout.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_codes-inl.h"
#include "kernels/cpu/kv_levels-inl.h"
#include "kernels/cpu/kv_scalars-inl.h"

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
  static constexpr bool kScaled = false, kBiased = false;
  levels::Table<kBits> table;
  explicit LevelMap(const codec::Layout& layout) : table(layout.levels) {}
  HWY_INLINE VF operator()(VI codes, VF, VF) const { return table(codes); }
};
struct AffineMap {
  static constexpr bool kScaled = true, kBiased = true;
  explicit AffineMap(const codec::Layout&) {}
  HWY_INLINE VF operator()(VI codes, VF scale, VF bias) const { return hn::MulAdd(hn::ConvertTo(F(), codes), scale, bias); }
};

// Microscaled: value * scale of the group.
struct Mxfp4Map {
  static constexpr bool kScaled = true, kBiased = false;
  struct Twice {  // scales come halved
    float values[16];
    explicit Twice(const codec::Layout& layout) {
      for (int i = 0; i < 16; ++i) values[i] = 2 * layout.levels[i];
    }
  };
  Twice twice;
  levels::Table<4> table;
  explicit Mxfp4Map(const codec::Layout& layout) : twice(layout), table(twice.values) {}
  HWY_INLINE VF operator()(VI codes, VF scale, VF) const { return hn::Mul(table(codes), scale); }
};
struct Mxfp8Map {
  static constexpr bool kScaled = true, kBiased = false;
  explicit Mxfp8Map(const codec::Layout&) {}
  // e4m3's exponent and mantissa in a float's place are worth 2^-120 of what they should be, subnormal ones too.
  HWY_INLINE VF operator()(VI codes, VF scale, VF) const {
    const VI sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(I(), 0x80))), rest = hn::ShiftLeft<20>(hn::And(codes, hn::Set(I(), 0x7f)));
    return hn::Mul(hn::Mul(hn::BitCast(F(), hn::Or(sign, rest)), hn::Set(F(), 0x1p120f)), scale);
  }
};

// Keys to tile [padded dim][64].
template <int kBits, class Map>
void DecodeKeys(const codec::Layout& layout, const uint8_t* block, const float* scalars, float* tile) {
  const Map map(layout);
  const uint8_t *low = block + layout.planes[0].offset, *high = block + layout.planes[1].offset;
  for (int first = 0; first < layout.padded_dim / 4; first += 2) {
    const int group_of_dims = std::min(first * 4 / layout.group, layout.groups - 1);
    for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(F()))
      codes::Unrolled<8>([&](auto which) {
        constexpr int kParity = which / 4, kGroup = which % 4;
        const size_t quad = first + kParity, at = kGroup * kLanes + lane;
        VF scale = hn::Zero(F()), bias = scale;
        if constexpr (Map::kScaled) scale = hn::LoadU(F(), scalars + group_of_dims * kTileTokens + at);
        if constexpr (Map::kBiased) bias = hn::LoadU(F(), scalars + (layout.groups + group_of_dims) * kTileTokens + at);
        const VI four = codes::KeyCodes<kBits, true, kGroup, kParity>(low, high, quad, lane);
        float* to = tile + quad * 4 * kTileTokens + at;
        hn::StoreU(map(Byte<0>(four), scale, bias), F(), to);
        hn::StoreU(map(Byte<1>(four), scale, bias), F(), to + kTileTokens);
        hn::StoreU(map(Byte<2>(four), scale, bias), F(), to + 2 * kTileTokens);
        hn::StoreU(map(Byte<3>(four), scale, bias), F(), to + 3 * kTileTokens);
      });
  }
}

// The same for affine codes whose scales and biases belong to channels: scalars [groups of tokens][2][padded dim].
template <int kBits>
void DecodeChannels(const codec::Layout& layout, const uint8_t* block, const float* scalars, float* tile) {
  const uint8_t *low = block + layout.planes[0].offset, *high = block + layout.planes[1].offset;
  const size_t width = layout.padded_dim;
  for (size_t first = 0; first < width / 4; first += 2)
    for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(F()))
      codes::Unrolled<8>([&](auto which) {
        constexpr int kParity = which / 4, kGroup = which % 4;
        const size_t quad = first + kParity, at = kGroup * kLanes + lane;
        const float* const scale = scalars + static_cast<size_t>(kGroup * kLanes / layout.group) * 2 * width + quad * 4;
        const VI four = codes::KeyCodes<kBits, true, kGroup, kParity>(low, high, quad, lane);
        float* const to = tile + quad * 4 * kTileTokens + at;
        codes::Unrolled<4>([&](auto byte) {
          const VF code = hn::ConvertTo(F(), Byte<byte>(four));
          hn::StoreU(hn::MulAdd(code, hn::Set(F(), scale[byte]), hn::Set(F(), scale[width + byte])), F(), to + byte * kTileTokens);
        });
      });
}

// Values to tile [64][padded dim].
template <int kBits, class Map>
void DecodeValues(const codec::Layout& layout, const uint8_t* block, const float* scalars, float* tile) {
  const Map map(layout);
  const uint8_t *low = block + layout.planes[0].offset, *high = block + layout.planes[1].offset;
  const size_t ld = layout.padded_dim;
  constexpr int kStep = codes::most_fields(kBits);
  for (size_t dims = 0; dims < ld / kLanes; ++dims) {
    const int group_of_dims = std::min(static_cast<int>(dims * kLanes) / layout.group, layout.groups - 1);
    const float *scale = nullptr, *bias = nullptr;
    if constexpr (Map::kScaled) scale = scalars + group_of_dims * kTileTokens;
    if constexpr (Map::kBiased) bias = scalars + (layout.groups + group_of_dims) * kTileTokens;
    for (size_t base = 0; base < codes::kTokenQuads; base += kStep)
      for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(F()))
        codes::Unrolled<kStep>([&](auto inner) {
          const VI four = codes::ValueCodes<kBits, true, inner>(low, high, dims, base, lane);
          const size_t token = (base + inner) * 4;
          codes::Unrolled<4>([&](auto byte) {
            VF s = hn::Zero(F()), b = s;
            if constexpr (Map::kScaled) s = hn::Set(F(), scale[token + byte]);
            if constexpr (Map::kBiased) b = hn::Set(F(), bias[token + byte]);
            hn::StoreU(map(Byte<byte>(four), s, b), F(), tile + (token + byte) * ld + dims * kLanes + lane);
          });
        });
  }
}

// The indices of all tokens' sub-vector j.
HWY_INLINE void UnpackIndices(const codec::Layout& layout, const uint8_t* block, int j, int32_t* HWY_RESTRICT at) {
  std::fill_n(at, kTileTokens, 0);
  for (int p = 0; p < layout.plane_count; ++p) {
    const codec::Plane& plane = layout.planes[p];
    const int run = 8 * plane.bits, mask = (1 << plane.bits) - 1;
    const uint8_t* HWY_RESTRICT row = block + plane.offset + static_cast<size_t>(j * run);
    for (int first = 0, shift = 0; first < kTileTokens; first += run, shift += plane.bits)
      for (int t = 0; t < run; ++t) at[first + t] |= (row[t] >> shift & mask) << plane.shift;
  }
}

// Every token's centroid to rows `ld` apart. kSub 0: any length.
template <size_t kSub>
HWY_INLINE void PutCentroids(const float* centroids, const int32_t* at, size_t sub, size_t ld, float* to) {
  const size_t length = kSub ? kSub : sub;
  for (size_t t = 0; t < kTileTokens; ++t)
    std::memcpy(to + t * ld, centroids + static_cast<size_t>(at[t]) * length, length * sizeof(float));
}
inline void PutCentroids(const float* centroids, const int32_t* at, size_t sub, size_t ld, float* to) {
  switch (sub) {
    case 2: return PutCentroids<2>(centroids, at, sub, ld, to);
    case 4: return PutCentroids<4>(centroids, at, sub, ld, to);
    case 8: return PutCentroids<8>(centroids, at, sub, ld, to);
    default: return PutCentroids<0>(centroids, at, sub, ld, to);
  }
}

// Codebook indices: keys to [padded dim][64], values to [64][padded dim].
inline void DecodeIndices(const codec::Layout& layout, const uint8_t* block, const float* centroids, float* tile) {
  const int sub = layout.codec->spec().sub, ld = layout.padded_dim;
  HWY_ALIGN int32_t at[kTileTokens];
  for (int j = 0; j < layout.codes; ++j) {
    UnpackIndices(layout, block, j, at);
    if (layout.role == codec::Role::values) {
      PutCentroids(centroids, at, static_cast<size_t>(sub), static_cast<size_t>(ld), tile + j * sub);
      continue;
    }
    for (int t = 0; t < kTileTokens; t += static_cast<int>(hn::Lanes(F()))) {
      const VI first = hn::Mul(hn::Load(I(), at + t), hn::Set(I(), sub));
      for (int i = 0; i < sub; ++i)
        hn::StoreU(hn::GatherIndex(F(), centroids, hn::Add(first, hn::Set(I(), i))), F(), tile + (j * sub + i) * kTileTokens + t);
    }
  }
}

template <int kBits, class Map>
void DecodeCodes(const codec::Layout& layout, const uint8_t* block, const float* scalars, float* tile) {
  if (std::is_same_v<Map, AffineMap> && layout.by_channel())
    DecodeChannels<kBits>(layout, block, scalars, tile);
  else if (layout.role == codec::Role::keys)
    DecodeKeys<kBits, Map>(layout, block, scalars, tile);
  else
    DecodeValues<kBits, Map>(layout, block, scalars, tile);
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

/// Decodes `tokens` (1..64) tokens from the start of `blocks`, `full` numbers or one part, into `tile`: keys [padded dim][64], values
/// [64][padded dim]. centroids: of indices.
/// scalars: [max(1, scalar_rows)][64] floats of scratch, which the result may point to.
inline TileFacts DecodeTile(const codec::Layout& layout, const uint8_t* blocks, int tokens, const float* centroids, float* scalars,
                            float* tile) {
  using namespace tile_decode;
  TileFacts facts;
  if (layout.family == codec::Family::full) {
    switch (layout.dtype) {
      case Dtype::f16: facts.finite = DecodeFull<Dtype::f16>(layout, blocks, tokens, tile); break;
      case Dtype::bf16: facts.finite = DecodeFull<Dtype::bf16>(layout, blocks, tokens, tile); break;
      case Dtype::f32: facts.finite = DecodeFull<Dtype::f32>(layout, blocks, tokens, tile); break;
    }
  } else if (layout.indexed()) {
    DecodeIndices(layout, blocks, centroids, tile);
  } else if (layout.has_norms()) {
    DecodeScalars(layout, blocks, scalars);
    facts.norms = scalars;
    switch (layout.bits) {
      case 1: DecodeCodes<1, LevelMap<1>>(layout, blocks, nullptr, tile); break;
      case 2: DecodeCodes<2, LevelMap<2>>(layout, blocks, nullptr, tile); break;
      case 3: DecodeCodes<3, LevelMap<3>>(layout, blocks, nullptr, tile); break;
      case 4: DecodeCodes<4, LevelMap<4>>(layout, blocks, nullptr, tile); break;
      case 5: DecodeCodes<5, LevelMap<5>>(layout, blocks, nullptr, tile); break;
      default: DecodeCodes<6, LevelMap<6>>(layout, blocks, nullptr, tile); break;
    }
  } else if (layout.scalar_bytes() == 1) {
    DecodeScalars(layout, blocks, scalars);
    layout.bits == 4 ? DecodeCodes<4, Mxfp4Map>(layout, blocks, scalars, tile) : DecodeCodes<8, Mxfp8Map>(layout, blocks, scalars, tile);
  } else {
    DecodeScalars(layout, blocks, scalars);
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
