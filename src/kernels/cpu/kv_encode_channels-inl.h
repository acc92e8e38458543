// Encoding keys by channel: a scale and a bias for each channel of a group of tokens (KIVI, arXiv 2402.02750).
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_ENCODE_CHANNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_ENCODE_CHANNELS_INL_H_
#undef TERSOR_KERNELS_CPU_KV_ENCODE_CHANNELS_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_ENCODE_CHANNELS_INL_H_
#endif

#include <algorithm>

#include "codec/affine.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_encode.h"
#include "kernels/cpu/kv_encode_batch.h"
#include "kernels/cpu/kv_encode_pack-inl.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace encode {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::I;

// Channels that are encoded at once.
constexpr size_t kChannels = 64;

// Channels [first, first + count) of a group's tokens as they are to be encoded: [tokens][kChannels], zero beyond `count`.
inline void GatherChannels(const KvEncode& p, const EncodeGroup& g, size_t first, size_t count, float* x) {
  const F d;
  const size_t dim = p.layout->dim;
  const float* const centre = p.centre ? p.centre + static_cast<size_t>(g.batch * p.heads + g.head) * dim + first : nullptr;
  std::fill(x, x + static_cast<size_t>(p.layout->group) * kChannels, 0.0f);
  for (int t = 0; t < p.layout->group; ++t, x += kChannels) {
    ToFloat(p.rows.type, static_cast<const char*>(p.rows.row(g.batch, g.head, g.row + t)) + first * size_of(p.rows.type), x, count);
    if (centre)
      for (size_t i = 0; i < count; ++i) x[i] -= centre[i];
    for (size_t i = 0; i < kChannels; i += hn::Lanes(d)) hn::Store(Clean(hn::Load(d, x + i)), d, x + i);
  }
}

// Scales and biases of channels from their extremes, to the block and as they are decoded.
inline void StoreRanges(const codec::Layout& layout, const EncodeGroup& g, size_t first, size_t count, const float* low, const float* high,
                        float* scales, float* biases) {
  const auto rule = layout.codec->spec().rule.value_or(codec::GroupRule::minmax);
  uint16_t* const to = reinterpret_cast<uint16_t*>(g.block + layout.scalars_offset) +
                       static_cast<size_t>(g.token / layout.group) * 2 * layout.padded_dim + first;
  for (size_t i = 0; i < count; ++i) {
    const codec::Affine affine = codec::affine_by_rule(rule, low[i], high[i], layout.bits);
    to[i] = codec::encode_scale(affine.scale), to[static_cast<size_t>(layout.padded_dim) + i] = codec::encode_scale(affine.bias);
    scales[i] = affine.scale, biases[i] = affine.bias;
  }
}

inline void EncodeChannels(const KvEncode& p, const EncodeGroup& g) {
  const codec::Layout& layout = *p.layout;
  const auto tokens = static_cast<size_t>(layout.group);
  const F d;
  const hn::Rebind<uint8_t, I> narrow;
  const auto top = hn::Set(d, static_cast<float>((1 << layout.bits) - 1));
  HWY_ALIGN float x[codec::kTileTokens * kChannels], low[kChannels], high[kChannels], scales[kChannels] = {}, biases[kChannels] = {};
  HWY_ALIGN uint8_t codes[kChannels];
  for (size_t first = 0; first < static_cast<size_t>(layout.dim); first += kChannels) {
    const size_t count = std::min(kChannels, layout.dim - first);
    GatherChannels(p, g, first, count, x);
    for (size_t i = 0; i < kChannels; i += hn::Lanes(d)) {
      auto lo = hn::Load(d, x + i), hi = lo;
      for (size_t t = 1; t < tokens; ++t) {
        const auto v = hn::Load(d, x + t * kChannels + i);
        lo = hn::Min(lo, v), hi = hn::Max(hi, v);
      }
      hn::Store(lo, d, low + i), hn::Store(hi, d, high + i);
    }
    StoreRanges(layout, g, first, count, low, high, scales, biases);
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < kChannels; i += hn::Lanes(d)) {
        const auto found = AffineCodes(hn::Load(d, x + t * kChannels + i), hn::Load(d, scales + i), hn::Load(d, biases + i), top);
        hn::StoreU(hn::DemoteTo(narrow, found), narrow, codes + i);
      }
      PackKeys(layout, g.token + static_cast<int>(t), first, count, codes, g.block);
    }
  }
}

}  // namespace encode
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
