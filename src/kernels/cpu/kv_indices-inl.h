// Nearest centroids of sub-vectors, without an array of distances.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_INDICES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_INDICES_INL_H_
#undef TERSOR_KERNELS_CPU_KV_INDICES_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_INDICES_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "codec/kmeans.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_levels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace indices {
namespace hn = hwy::HWY_NAMESPACE;
using levels::F;
using levels::I;
using levels::VF;
using levels::VI;

// Distances are |c|^2 / 2 - <x, c>: what is left of |x - c|^2 / 2 once |x|^2 is the same for all. The first of equals wins.

// Lanes are vectors: x [sub][16] to codes [16]. kSub 0: any length.
template <size_t kSub>
void NearestOfBatch(const codec::Nearest& book, const float* centroids, const float* x, uint16_t* codes) {
  constexpr size_t kAtOnce = 4;  // centroids whose sums do not wait for one another
  const size_t sub = kSub ? kSub : static_cast<size_t>(book.dim()), count = static_cast<size_t>(book.count());
  const float* half = book.half_squares().data();
  for (size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(F())) {
    VF numbers[kSub ? kSub : 1];
    if constexpr (kSub > 0)
      for (size_t s = 0; s < kSub; ++s) numbers[s] = hn::LoadU(F(), x + s * codec::kLanes + lane);
    VF best = hn::Set(F(), std::numeric_limits<float>::infinity());
    VI at = hn::Zero(I());
    const auto take = [&](VF distance, size_t c) HWY_ATTR {
      const auto nearer = hn::Lt(distance, best);
      best = hn::Min(distance, best);
      at = hn::IfThenElse(hn::RebindMask(I(), nearer), hn::Set(I(), static_cast<int32_t>(c)), at);
    };
    size_t c = 0;
    for (; c + kAtOnce <= count; c += kAtOnce) {
      VF distance[kAtOnce];
      for (size_t i = 0; i < kAtOnce; ++i) distance[i] = hn::Set(F(), half[c + i]);
      for (size_t s = 0; s < sub; ++s) {
        const VF v = kSub ? numbers[kSub ? s : 0] : hn::LoadU(F(), x + s * codec::kLanes + lane);
        for (size_t i = 0; i < kAtOnce; ++i) distance[i] = hn::NegMulAdd(v, hn::Set(F(), centroids[(c + i) * sub + s]), distance[i]);
      }
      for (size_t i = 0; i < kAtOnce; ++i) take(distance[i], c + i);
    }
    for (; c < count; ++c) {
      VF distance = hn::Set(F(), half[c]);
      for (size_t s = 0; s < sub; ++s)
        distance = hn::NegMulAdd(hn::LoadU(F(), x + s * codec::kLanes + lane), hn::Set(F(), centroids[c * sub + s]), distance);
      take(distance, c);
    }
    hn::StoreU(hn::DemoteTo(hn::Rebind<uint16_t, F>(), at), hn::Rebind<uint16_t, F>(), codes + lane);
  }
}

inline void NearestOfBatch(const codec::Nearest& book, const float* centroids, const float* x, uint16_t* codes) {
  switch (book.dim()) {
    case 2: return NearestOfBatch<2>(book, centroids, x, codes);
    case 4: return NearestOfBatch<4>(book, centroids, x, codes);
    case 8: return NearestOfBatch<8>(book, centroids, x, codes);
    default: return NearestOfBatch<0>(book, centroids, x, codes);
  }
}

// Lanes are centroids: one vector, its numbers `stride` apart.
inline uint16_t NearestOfOne(const codec::Nearest& book, const float* x, size_t stride) {
  const size_t sub = static_cast<size_t>(book.dim()), count = static_cast<size_t>(book.count()), lanes = hn::Lanes(F());
  const float *half = book.half_squares().data(), *columns = book.columns().data();
  float best = std::numeric_limits<float>::infinity();
  size_t found = 0, c = 0;
  VF nearest = hn::Set(F(), best);
  VI at = hn::Zero(I());
  for (; c + lanes <= count; c += lanes) {
    VF distance = hn::LoadU(F(), half + c);
    for (size_t s = 0; s < sub; ++s)
      distance = hn::NegMulAdd(hn::Set(F(), x[s * stride]), hn::LoadU(F(), columns + s * count + c), distance);
    const auto nearer = hn::Lt(distance, nearest);
    nearest = hn::Min(distance, nearest);
    at = hn::IfThenElse(hn::RebindMask(I(), nearer), hn::Iota(I(), static_cast<int32_t>(c)), at);
  }
  HWY_ALIGN float distances[hn::MaxLanes(F())];
  HWY_ALIGN int32_t places[hn::MaxLanes(F())];
  hn::Store(nearest, F(), distances), hn::Store(at, I(), places);
  for (size_t i = 0; i < lanes && c > 0; ++i)
    if (distances[i] < best || (distances[i] == best && static_cast<size_t>(places[i]) < found))
      best = distances[i], found = static_cast<size_t>(places[i]);
  for (; c < count; ++c) {
    float distance = half[c];
    for (size_t s = 0; s < sub; ++s) distance -= x[s * stride] * columns[s * count + c];
    if (distance < best) best = distance, found = c;
  }
  return static_cast<uint16_t>(found);
}

}  // namespace indices
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
