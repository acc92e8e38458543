// Codebook lookup: codes in 32-bit lanes to float levels, by permutes of registers where the target has them.
// Vector code: include it inside a foreach_target file, after hwy/highway.h.
#if defined(TERSOR_KERNELS_CPU_KV_LEVELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CPU_KV_LEVELS_INL_H_
#undef TERSOR_KERNELS_CPU_KV_LEVELS_INL_H_
#else
#define TERSOR_KERNELS_CPU_KV_LEVELS_INL_H_
#endif

#include "codec/layout.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
namespace levels {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, codec::kLanes>;
using I = hn::RebindToSigned<F>;
using VF = hn::Vec<F>;
using VI = hn::Vec<I>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kRegisterBits = 4;  // one register holds 16 levels
#elif HWY_TARGET == HWY_AVX2
constexpr int kRegisterBits = 3;
#else
constexpr int kRegisterBits = 0;
#endif

/// The table of 2^kBits levels. Codes must be below 2^kBits.
template <int kBits>
class Table {
 public:
  explicit Table(const float* levels) : levels_(levels) {
    if constexpr (kRegisters > 0) {
      const F f;
      HWY_ALIGN float padded[kRegisters << kRegisterBits] = {};
      for (int i = 0; i < 1 << kBits; ++i) padded[i] = levels[i];
      for (int r = 0; r < kRegisters; ++r) registers_[r] = hn::Load(f, padded + (r << kRegisterBits));
    }
  }
  HWY_INLINE VF operator()(VI codes) const {
    if constexpr (kRegisters > 0) {
      return Select<0, kRegisters>(codes);
    } else {
      return hn::GatherIndex(F(), levels_, codes);
    }
  }

 private:
  static constexpr bool kFits = kRegisterBits > 0 && kBits <= kRegisterBits + 2;
  static constexpr int kRegisters = !kFits ? 0 : kBits <= kRegisterBits ? 1 : 1 << (kBits - kRegisterBits);

  // The lookup among registers [kFirst, kFirst + kCount): a permute each, blended by the codes' upper bits.
  template <int kFirst, int kCount>
  HWY_INLINE VF Select(VI codes) const {
    if constexpr (kCount == 1) {
      return hn::TableLookupLanes(registers_[kFirst], Indices(codes));
    } else {
      constexpr int kBit = (kCount / 2) << kRegisterBits;
      const auto upper = hn::RebindMask(F(), hn::TestBit(codes, hn::Set(I(), kBit)));
      return hn::IfThenElse(upper, Select<kFirst + kCount / 2, kCount / 2>(codes), Select<kFirst, kCount / 2>(codes));
    }
  }
  // The permutes look at the low bits only; Highway wants indices in range.
  static HWY_INLINE auto Indices(VI codes) {
    if constexpr (kBits > kRegisterBits) codes = hn::And(codes, hn::Set(I(), (1 << kRegisterBits) - 1));
    return hn::IndicesFromVec(F(), codes);
  }

  const float* levels_;
  VF registers_[kRegisters > 0 ? kRegisters : 1];
};

/// How many of 2^kBits - 1 rising thresholds lie below a number: a search whose steps look their threshold up by the code so far.
template <int kBits>
class Search {
 public:
  /// tree: 2^kBits floats from make_tree, which must outlive the search.
  explicit Search(const float* tree) : first_(tree), last_(tree + (1 << (kBits - 1))) {}
  HWY_INLINE VI operator()(VF x) const {
    const VI code = first_(x);
    return hn::Sub(hn::Add(code, code), hn::VecFromMask(I(), hn::RebindMask(I(), hn::Gt(x, last_(code)))));
  }
  /// Step s has 2^s thresholds, which start at tree[2^s].
  static void make_tree(const float* thresholds, float* tree) {
    tree[0] = 0;
    for (int step = 0; step < kBits; ++step)
      for (int i = 0; i < 1 << step; ++i) tree[(1 << step) + i] = thresholds[((2 * i + 1) << (kBits - 1 - step)) - 1];
  }

 private:
  Search<kBits - 1> first_;
  Table<kBits - 1> last_;
};
template <>
class Search<0> {
 public:
  explicit Search(const float*) {}
  HWY_INLINE VI operator()(VF) const { return hn::Zero(I()); }
};

}  // namespace levels
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
