#include "kernels/cpu/kv_encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_encode.cpp"
// Before whatever includes highway.h:
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "codec/affine.h"
#include "codec/plain.h"
#include "codec/scalar.h"
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"
#include "kernels/cpu/kv_encode_channels-inl.h"
#include "kernels/cpu/kv_encode_levels-inl.h"
#include "kernels/cpu/kv_encode_pack-inl.h"
#include "kernels/cpu/kv_indices-inl.h"
#include "kernels/cpu/kv_levels-inl.h"
#include "kernels/cpu/kv_rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace encode {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::I;

constexpr size_t kMaxDim = codec::kMaxDim, kMaxCodes = 2 * kMaxDim;
constexpr int kLanes = codec::kLanes;
constexpr size_t kFew = 4;  // vectors of a batch whose places are called from memory in advance

inline void Subtract(const float* from, size_t dim, float* x) {
  for (size_t i = 0; i < dim; ++i) x[i] -= from[i];
}

// Vectors to columns; unused columns are zero.
inline void Gather(const KvEncode& p, const EncodeBatch& batch, float* x) {
  const size_t dim = p.layout->dim;
  if (batch.count < kBatch) std::fill(x, x + dim * kBatch, 0.0f);
  HWY_ALIGN float row[kMaxDim];
  for (size_t v = 0; v < batch.count; ++v) {
    ToFloat(p.rows.type, batch.from[v], row, dim);
    if (p.centre) Subtract(p.centre + static_cast<size_t>(batch.row_of_heads[v]) * dim, dim, row);
    for (size_t i = 0; i < dim; ++i) x[i * kBatch + v] = row[i];
  }
}

inline void Sanitise(float* x, size_t dim) {
  const F d;
  for (size_t i = 0; i < dim * kBatch; i += hn::Lanes(d)) hn::Store(Clean(hn::Load(d, x + i)), d, x + i);
}

// Calls the lines that the codes of a few vectors will change from memory, while these are still being computed.
inline void Prefetch(const codec::Layout& layout, const EncodeBatch& batch) {
  for (size_t v = 0; v < batch.count; ++v)
    for (int i = 0; i < layout.plane_count; ++i) {
      const codec::Plane& plane = layout.planes[i];
      const bool keys = layout.role == codec::Role::keys;
      for (int d = 0; d < layout.padded_dim; d += keys ? 4 : kLanes) {
        const auto at = keys ? codec::key_place(plane.bits, batch.token[v], d) : codec::value_place(plane.bits, batch.token[v], d);
        __builtin_prefetch(batch.block[v] + plane.offset + at.byte, 1);
      }
    }
}

inline void EncodeAffine(const KvEncode& p, const EncodeBatch& batch, const float* x, uint8_t* codes) {
  const codec::Layout& layout = *p.layout;
  const F d;
  const auto top = hn::Set(d, static_cast<float>((1 << layout.bits) - 1));
  for (int g = 0; g < layout.groups; ++g) {
    const size_t begin = static_cast<size_t>(g) * layout.group, end = std::min<size_t>(begin + layout.group, layout.dim);
    for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
      auto lo = hn::Load(d, x + begin * kBatch + lane), hi = lo;
      for (size_t i = begin + 1; i < end; ++i) {
        const auto v = hn::Load(d, x + i * kBatch + lane);
        lo = hn::Min(lo, v), hi = hn::Max(hi, v);
      }
      HWY_ALIGN float low[kBatch], high[kBatch], scales[kBatch], biases[kBatch];
      hn::Store(lo, d, low), hn::Store(hi, d, high);
      for (size_t k = 0; k < hn::Lanes(d); ++k) {
        const codec::Affine affine = codec::affine_from_range(low[k], high[k], layout.bits);
        scales[k] = affine.scale, biases[k] = affine.bias;
        if (lane + k >= batch.count) continue;
        PutScalar(layout, batch, lane + k, g, codec::encode_scale(affine.scale));
        PutScalar(layout, batch, lane + k, layout.groups + g, codec::encode_scale(affine.bias));
      }
      const auto scale = hn::Load(d, scales), bias = hn::Load(d, biases);
      for (size_t i = begin; i < end; ++i)
        StoreCodes(AffineCodes(hn::Load(d, x + i * kBatch + lane), scale, bias, top), codes + i * kBatch + lane);
    }
  }
}

template <Dtype kType, class T>
void StoreFull(const codec::Layout& layout, const EncodeBatch& batch, const float* x) {
  HWY_ALIGN T narrow[kMaxDim * kBatch];
  RowFromFloat<kType>(x, narrow, layout.dim * kBatch);
  const bool keys = layout.role == codec::Role::keys;
  const size_t step = keys ? layout.block_tokens : 1;
  for (size_t v = 0; v < batch.count; ++v) {
    T* to = reinterpret_cast<T*>(batch.block[v]) + (keys ? batch.token[v] : batch.token[v] * layout.padded_dim);
    for (int i = 0; i < layout.dim; ++i) to[i * step] = narrow[i * kBatch + v];
  }
}

// The indices of a batch, whose vectors are of one head.
inline void EncodeIndices(const KvEncode& p, const EncodeBatch& batch, float* x) {
  constexpr size_t kFewIndices = 6;  // vectors that are quicker one by one
  const codec::Layout& layout = *p.layout;
  const codec::Codec& codec = p.codecs ? *p.codecs[batch.head[0]] : *layout.codec;
  const codec::Nearest& book = *codec.index();
  const auto sub = static_cast<size_t>(book.dim());
  if (const auto smoothing = codec.smoothing(); !smoothing.empty()) {
    const F d;
    for (int i = 0; i < layout.dim; ++i)
      for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
        float* const at = x + static_cast<size_t>(i) * kBatch + lane;
        hn::Store(hn::Div(hn::Load(d, at), hn::Set(d, smoothing[i])), d, at);
      }
    RotateBatch(x, *codec.transform());
  }
  HWY_ALIGN uint16_t codes[kBatch];
  for (int j = 0; j < layout.codes; ++j) {
    const float* const from = x + static_cast<size_t>(j) * sub * kBatch;
    if (batch.count > kFewIndices) {
      indices::NearestOfBatch(book, codec.centroids().data(), from, codes);
    } else {
      for (size_t v = 0; v < batch.count; ++v) codes[v] = indices::NearestOfOne(book, from + v, kBatch);
    }
    for (int i = 0; i < layout.plane_count; ++i) {
      const codec::Plane& plane = layout.planes[i];
      const int mask = (1 << plane.bits) - 1;
      for (size_t v = 0; v < batch.count; ++v) {
        const codec::BitPlace at = codec::index_place(plane.bits, batch.token[v], j);
        uint8_t& byte = batch.block[v][plane.offset + at.byte];
        byte = static_cast<uint8_t>((byte & ~(mask << at.shift)) | (codes[v] >> plane.shift & mask) << at.shift);
      }
    }
  }
}

template <bool kKeys>
void PackParts(const codec::Layout& layout, const EncodeBatch& batch, const uint8_t* codes) {
  for (const codec::Layout& part : layout.parts()) Pack<kKeys>(part, batch, codes + static_cast<size_t>(part.first_code) * kBatch);
}

// Codecs with a map: two channel sets, levels and a sketch of what they leave, a sketch alone. All vectors of a batch are of one head
// where heads have maps of their own. x is changed.
inline void EncodeMapped(const KvEncode& p, const EncodeBatch& batch, float* x, uint8_t* codes) {
  const codec::Layout& layout = *p.layout;
  const codec::Codec& codec = p.codecs ? *p.codecs[batch.head[0]] : *layout.codec;
  const bool keys = layout.role == codec::Role::keys;
  const auto dim = static_cast<size_t>(layout.dim);
  const auto parts = layout.parts();
  HWY_ALIGN float y[kMaxDim * kBatch], norm2[kBatch];
  const auto mapped = [&](const codec::Layout& part) {
    MapBatch(*p.map, batch.head[0], keys, static_cast<size_t>(part.stored_begin), static_cast<size_t>(part.dim), dim, x, y);
  };
  const auto signs = [&](size_t i) {
    mapped(parts[i]);
    QuantiseSigns(parts[i], codec.sketch_factor(static_cast<int>(i)), batch, y, norm2,
                  codes + static_cast<size_t>(parts[i].first_code) * kBatch);
  };
  switch (layout.family) {
    case codec::Family::turboquant_split:
      for (const codec::Layout& part : parts) {
        mapped(part);
        QuantisePart(part, codec::resolved(codec.spec().scalar, layout.role), batch, y,
                     codes + static_cast<size_t>(part.first_code) * kBatch);
      }
      break;
    case codec::Family::turboquant_prod:
      if (parts.size() > 1) {  // x becomes what the levels leave
        const auto rule = codec.spec().scalar == ScalarRule::automatic ? ScalarRule::norm : codec.spec().scalar;
        HWY_ALIGN float scalars[kBatch] = {}, found[kMaxDim * kBatch];
        RotateBatch(x, *codec.rotation());
        QuantisePart(parts[0], rule, batch, x, codes, scalars);
        for (size_t i = 0; i < dim * kBatch; ++i) found[i] = parts[0].levels[codes[i]];
        for (size_t i = 0; i < dim * kBatch; ++i) x[i] -= scalars[i % kBatch] * found[i];
        UnrotateBatch(x, *codec.rotation());
      }
      SquareSums(x, dim, norm2);
      signs(parts.size() - 1);
      break;
    default: {  // qjl; channels with a sketch of their own are not in the other
      HWY_ALIGN float apart[kMaxDim * kBatch];
      const auto outliers = codec.outliers();
      for (size_t i = 0; i < outliers.size(); ++i) std::copy_n(x + static_cast<size_t>(outliers[i]) * kBatch, kBatch, apart + i * kBatch);
      for (const int channel : outliers) std::fill_n(x + static_cast<size_t>(channel) * kBatch, kBatch, 0.0f);
      SquareSums(x, dim, norm2);
      signs(0);
      if (parts.size() == 1) break;
      std::fill_n(x, dim * kBatch, 0.0f);
      for (size_t i = 0; i < outliers.size(); ++i) std::copy_n(apart + i * kBatch, kBatch, x + static_cast<size_t>(outliers[i]) * kBatch);
      SquareSums(x, dim, norm2);
      signs(1);
    }
  }
  keys ? PackParts<true>(layout, batch, codes) : PackParts<false>(layout, batch, codes);
}

// Families whose encoding is worth vectors of its own; others go through their codec's reference.
inline bool has_kernel(const codec::Layout& layout) {
  const codec::Spec& spec = layout.codec->spec();
  switch (layout.family) {
    case codec::Family::affine: return spec.rule != codec::GroupRule::minmax;
    case codec::Family::turboquant_rvq: return !spec.joint;
    case codec::Family::qjl: return layout.codec->stored_dim() <= static_cast<int>(kMaxDim);  // sketches may have more rows
    case codec::Family::mxfp4:
    case codec::Family::mxfp8: return false;
    default: return true;
  }
}

inline void EncodePlainly(const KvEncode& p, const EncodeBatch& batch) {
  const auto dim = static_cast<size_t>(p.layout->dim);
  HWY_ALIGN float x[kMaxDim];
  for (size_t v = 0; v < batch.count; ++v) {
    ToFloat(p.rows.type, batch.from[v], x, dim);
    if (p.centre) Subtract(p.centre + static_cast<size_t>(batch.row_of_heads[v]) * dim, dim, x);
    codec::encode_plainly(*p.layout, p.codecs ? *p.codecs[batch.head[v]] : *p.layout->codec, {x, dim}, batch.block[v], batch.token[v]);
  }
}

inline void EncodeOne(const KvEncode& p, const EncodeBatch& batch) {
  const codec::Layout& layout = *p.layout;
  if (!has_kernel(layout)) return EncodePlainly(p, batch);
  HWY_ALIGN float x[kMaxDim * kBatch];
  HWY_ALIGN uint8_t codes[kMaxCodes * kBatch];
  if (batch.count <= kFew && !layout.indexed()) Prefetch(layout, batch);
  Gather(p, batch, x);
  if (p.sanitise) Sanitise(x, layout.dim);
  if (layout.indexed()) return EncodeIndices(p, batch, x);
  if (p.map) return EncodeMapped(p, batch, x, codes);
  if (p.rotation) RotateBatch(x, *p.rotation);
  switch (layout.family) {
    case codec::Family::full:
      switch (layout.dtype) {
        case Dtype::f16: return StoreFull<Dtype::f16, uint16_t>(layout, batch, x);
        case Dtype::bf16: return StoreFull<Dtype::bf16, uint16_t>(layout, batch, x);
        case Dtype::f32: return StoreFull<Dtype::f32, float>(layout, batch, x);
      }
      return;
    case codec::Family::affine: EncodeAffine(p, batch, x, codes); break;
    case codec::Family::turboquant_rvq: {
      HWY_ALIGN float scaled[kMaxDim * kBatch], found[kMaxDim * kBatch];
      QuantiseStages(layout, batch, x, codes, scaled, found);
      break;
    }
    default: QuantisePart(layout, codec::resolved(layout.codec->spec().scalar, layout.role), batch, x, codes); break;
  }
  layout.role == codec::Role::keys ? PackParts<true>(layout, batch, codes) : PackParts<false>(layout, batch, codes);
}

}  // namespace encode

void KvEncodeBatch(const KvEncode& params, const EncodeBatch& batch) { encode::EncodeOne(params, batch); }
void KvEncodeGroup(const KvEncode& params, const EncodeGroup& group) { encode::EncodeChannels(params, group); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(KvEncodeBatch);
HWY_EXPORT(KvEncodeGroup);

namespace {

// A unit is the new tokens of one block of one head; a task is a run of units worth starting a thread for.
struct Units {
  int64_t block_tokens, first_block, blocks, total, per_task;
  explicit Units(const KvEncode& p) {
    block_tokens = p.layout->block_tokens;
    first_block = p.first / block_tokens;
    blocks = p.tokens ? (p.first + p.tokens - 1) / block_tokens - first_block + 1 : 0;
    total = p.batch * p.heads * blocks;
    constexpr int64_t kVectorsPerTask = 32;
    const int64_t vectors_per_unit = blocks ? std::max<int64_t>(1, p.tokens / blocks) : 1;
    per_task = std::max<int64_t>(1, kVectorsPerTask / vectors_per_unit);
  }
};

}  // namespace

size_t kv_encode_tasks(const KvEncode& p) {
  const Units units(p);
  return static_cast<size_t>((units.total + units.per_task - 1) / units.per_task);
}

void kv_encode_task(const KvEncode& p, size_t task) {
  const Units units(p);
  EncodeBatch batch;
  const auto flush = [&] {
    if (batch.count) HWY_DYNAMIC_DISPATCH(KvEncodeBatch)(p, batch);
    batch.count = 0;
  };
  const int64_t begin = static_cast<int64_t>(task) * units.per_task;
  for (int64_t unit = begin; unit < std::min(begin + units.per_task, units.total); ++unit) {
    const int64_t block = units.first_block + unit % units.blocks, head = unit / units.blocks % p.heads, b = unit / units.blocks / p.heads;
    uint8_t* const at = p.blocks + static_cast<size_t>(b) * p.batch_stride + static_cast<size_t>(head) * p.head_stride +
                        static_cast<size_t>(block) * p.layout->block_bytes;
    const int64_t low = std::max(p.first, block * units.block_tokens),
                  high = std::min(p.first + p.tokens, (block + 1) * units.block_tokens);
    if (p.layout->by_channel()) {
      for (int64_t token = low; token < high; token += p.layout->group)
        HWY_DYNAMIC_DISPATCH(KvEncodeGroup)(p, {b, head, token - p.first, at, static_cast<int>(token - block * units.block_tokens)});
      continue;
    }
    if ((p.codecs || (p.map && p.map->per_head())) && batch.count && batch.head[0] != head) flush();  // a batch has one codebook
    for (int64_t token = low; token < high; ++token) {
      batch.from[batch.count] = p.rows.row(b, head, token - p.first);
      batch.head[batch.count] = head, batch.row_of_heads[batch.count] = b * p.heads + head;
      batch.block[batch.count] = at;
      batch.token[batch.count] = static_cast<int>(token - block * units.block_tokens);
      if (++batch.count == kEncodeBatch) flush();
    }
  }
  flush();
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
