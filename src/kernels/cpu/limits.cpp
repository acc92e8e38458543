#include "kernels/cpu/limits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/limits.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, 16>;
using DI = hn::Repartition<int32_t, DF>;
using DU = hn::Repartition<uint64_t, DF>;
constexpr size_t kChains = 12;  // independent sums: more than latency times throughput of any processor here

uint64_t ReadOnce(const void* data, size_t bytes) {
  const DU d;
  const auto* from = static_cast<const uint64_t*>(data);
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i + 4 * lanes <= bytes / 8; i += 4 * lanes) {
    a = hn::Xor(a, hn::Load(d, from + i));
    b = hn::Xor(b, hn::Load(d, from + i + lanes));
    c = hn::Xor(c, hn::Load(d, from + i + 2 * lanes));
    e = hn::Xor(e, hn::Load(d, from + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

double FloatOperations(size_t rounds, float* sink) {
  const DF d;
  hn::Vec<DF> sums[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  const auto x = hn::Set(d, sink[0]), y = hn::Set(d, sink[1]);
#pragma GCC unroll 1
  for (size_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(sums[i], x, y);
  }
  auto all = sums[0];
#pragma GCC unroll 12
  for (size_t i = 1; i < kChains; ++i) all = hn::Add(all, sums[i]);
  sink[0] = hn::GetLane(hn::SumOfLanes(d, all));
  return 2.0 * kChains * static_cast<double>(rounds * hn::Lanes(d));
}

// One step: four codes a lane times 16-bit activations, two byte dot products or two products of 16-bit pairs.
double IntegerOperations(size_t rounds, int32_t* sink) {
  const DI d;
  hn::Vec<DI> sums[kChains];
#pragma GCC unroll 12
  for (size_t i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<int32_t>(i));
  const auto x = hn::Set(d, sink[0]), y = hn::Set(d, sink[1]);
#pragma GCC unroll 1
  for (size_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (size_t i = 0; i < kChains; ++i) {
#if HWY_TARGET == HWY_AVX3_DL
      sums[i].raw = _mm512_dpbusd_epi32(sums[i].raw, x.raw, y.raw);
#else
      const hn::Repartition<int16_t, DI> d16;
      hn::Vec<DI> unused = hn::Zero(d);
      sums[i] = hn::Add(sums[i],
                        hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, hn::Xor(x, sums[i])), hn::BitCast(d16, y), hn::Zero(d), unused));
#endif
    }
  }
  auto all = sums[0];
#pragma GCC unroll 12
  for (size_t i = 1; i < kChains; ++i) all = hn::Add(all, sums[i]);
  sink[0] = hn::GetLane(hn::SumOfLanes(d, all));
  return 2.0 * 2 * kChains * static_cast<double>(rounds * hn::Lanes(d));
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(ReadOnce);
HWY_EXPORT(FloatOperations);
HWY_EXPORT(IntegerOperations);

uint64_t read_once(const void* data, size_t bytes) { return HWY_DYNAMIC_DISPATCH(ReadOnce)(data, bytes); }
double float_operations(size_t rounds, float* sink) { return HWY_DYNAMIC_DISPATCH(FloatOperations)(rounds, sink); }
double integer_operations(size_t rounds, int32_t* sink) { return HWY_DYNAMIC_DISPATCH(IntegerOperations)(rounds, sink); }

}  // namespace tersor::kernels
#endif  // HWY_ONCE
