// Randomised Hadamard rotation of up to 16 vectors at once, one vector a lane: every step is vertical, there are no shuffles.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_ROTATE_INL_H_
#undef TERSOR_KERNELS_CPU_KV_ROTATE_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_ROTATE_INL_H_
#endif

#include <cmath>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace rotate {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBatch = codec::kLanes;  // vectors in one batch: [dim][kBatch] floats
using Tag = hn::CappedTag<float, kBatch>;

// Butterflies within runs of `power` rows.
inline void WalshHadamard(float* x, size_t dim, size_t power) {
  const Tag d;
  for (size_t half = 1; half < power; half *= 2)
    for (size_t block = 0; block < dim; block += 2 * half)
      for (size_t i = block; i < block + half; ++i)
        for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
          float* const low = x + i * kBatch + lane;
          float* const high = low + half * kBatch;
          const auto a = hn::Load(d, low), b = hn::Load(d, high);
          hn::Store(hn::Add(a, b), d, low);
          hn::Store(hn::Sub(a, b), d, high);
        }
}

// Multiplies by the core matrix (or its transpose) across runs of `power` rows.
template <bool kTranspose>
void CoreProduct(float* x, const codec::Rotation& rotation) {
  const Tag d;
  const size_t core = rotation.core(), power = rotation.power();
  const float* matrix = rotation.core_matrix().data();
  HWY_ALIGN float mixed[codec::kMaxDim * kBatch];
  for (size_t i = 0; i < power; ++i) {
    for (size_t r = 0; r < core; ++r)
      for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
        auto sum = hn::Zero(d);
        for (size_t c = 0; c < core; ++c)
          sum = hn::MulAdd(hn::Set(d, matrix[kTranspose ? c * core + r : r * core + c]), hn::Load(d, x + (c * power + i) * kBatch + lane),
                           sum);
        hn::Store(sum, d, mixed + r * kBatch + lane);
      }
    for (size_t r = 0; r < core; ++r)
      for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d))
        hn::Store(hn::Load(d, mixed + r * kBatch + lane), d, x + (r * power + i) * kBatch + lane);
  }
}

inline void ScaleRows(float* x, const float* signs, float factor, size_t dim) {
  const Tag d;
  for (size_t i = 0; i < dim; ++i)
    for (size_t lane = 0; lane < kBatch; lane += hn::Lanes(d)) {
      float* const at = x + i * kBatch + lane;
      hn::Store(hn::Mul(hn::Load(d, at), hn::Set(d, signs[i] * factor)), d, at);
    }
}
}  // namespace rotate

/// x: [dim][16], aligned; in place.
inline void RotateBatch(float* x, const codec::Rotation& rotation) {
  const size_t dim = rotation.dim();
  const float norm = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  for (int round = 0; round < rotation.rounds(); ++round) {
    rotate::ScaleRows(x, rotation.signs().data() + round * dim, norm, dim);
    rotate::WalshHadamard(x, dim, rotation.power());
    if (rotation.core() > 1) rotate::CoreProduct<false>(x, rotation);
  }
}

inline void UnrotateBatch(float* x, const codec::Rotation& rotation) {
  const size_t dim = rotation.dim();
  const float norm = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  for (int round = rotation.rounds(); round-- > 0;) {
    if (rotation.core() > 1) rotate::CoreProduct<true>(x, rotation);
    rotate::WalshHadamard(x, dim, rotation.power());
    rotate::ScaleRows(x, rotation.signs().data() + round * dim, norm, dim);
  }
}

/// Whether single rows can be rotated in place, which needs no transposing.
inline bool rotates_rows(const codec::Rotation& rotation) {
  return rotation.core() == 1 && rotation.dim() % hwy::HWY_NAMESPACE::Lanes(rotate::Tag()) == 0;
}

namespace rotate {
// Butterflies between lanes kHalf apart.
template <size_t kHalf>
struct LaneButterfly {
  LaneButterfly() {
    HWY_ALIGN int32_t partners[kBatch];
    HWY_ALIGN float signs[kBatch];
    for (size_t i = 0; i < kBatch; ++i)
      partners[i] = static_cast<int32_t>((i ^ kHalf) % hn::MaxLanes(Tag())), signs[i] = i & kHalf ? -1.0f : 1.0f;
    partner = hn::IndicesFromVec(Tag(), hn::Load(hn::RebindToSigned<Tag>(), partners));
    sign = hn::Load(Tag(), signs);
  }
  HWY_INLINE hn::Vec<Tag> operator()(hn::Vec<Tag> v) const {
    if constexpr (kHalf < hn::MaxLanes(Tag())) return hn::MulAdd(v, sign, hn::TableLookupLanes(v, partner));
    return v;
  }
  decltype(hn::IndicesFromVec(Tag(), hn::Zero(hn::RebindToSigned<Tag>()))) partner;
  hn::Vec<Tag> sign;
};

inline void WalshHadamardRow(float* x, size_t dim) {
  const Tag d;
  const LaneButterfly<1> by1;
  const LaneButterfly<2> by2;
  const LaneButterfly<4> by4;
  const LaneButterfly<8> by8;
  for (size_t i = 0; i < dim; i += hn::Lanes(d)) hn::StoreU(by8(by4(by2(by1(hn::LoadU(d, x + i))))), d, x + i);
  for (size_t half = hn::Lanes(d); half < dim; half *= 2)
    for (size_t block = 0; block < dim; block += 2 * half)
      for (size_t i = block; i < block + half; i += hn::Lanes(d)) {
        const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + half);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + half);
      }
}

inline void ScaleRow(float* x, const float* signs, float factor, size_t dim) {
  const Tag d;
  for (size_t i = 0; i < dim; i += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Mul(hn::LoadU(d, signs + i), hn::Set(d, factor))), d, x + i);
}
}  // namespace rotate

/// One row, for which rotates_rows() holds.
template <bool kInverse>
void RotateRow(float* x, const codec::Rotation& rotation) {
  const size_t dim = rotation.dim();
  const float norm = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  for (int i = 0; i < rotation.rounds(); ++i) {
    const int round = kInverse ? rotation.rounds() - 1 - i : i;
    if (kInverse) rotate::WalshHadamardRow(x, dim);
    rotate::ScaleRow(x, rotation.signs().data() + round * dim, norm, dim);
    if (!kInverse) rotate::WalshHadamardRow(x, dim);
  }
}

/// Rows of `ld` floats to columns of a batch and back; count <= 16. Columns beyond count become 0.
inline void RowsToBatch(const float* rows, size_t ld, size_t count, size_t dim, float* batch) {
  for (size_t i = 0; i < dim; ++i)
    for (size_t v = 0; v < rotate::kBatch; ++v) batch[i * rotate::kBatch + v] = v < count ? rows[v * ld + i] : 0.0f;
}
inline void BatchToRows(const float* batch, size_t count, size_t dim, float* rows, size_t ld) {
  for (size_t v = 0; v < count; ++v)
    for (size_t i = 0; i < dim; ++i) rows[v * ld + i] = batch[i * rotate::kBatch + v];
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
