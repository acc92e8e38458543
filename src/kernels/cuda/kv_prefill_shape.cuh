// How the prefill kernel lays out shared memory, and the tiles that a block walks over.
//
// A block has kRows query vectors of one KV head (token after token, the heads of the group side by side), 64 a warpgroup. Keys and values
// of 64 tokens are a tile. Which token stands in which row of the tile, and in which order dimensions do, follows from what a lane finds in
// its words of codes (codec/fragment.h), so that it can store 16 bytes at a time; scores do not depend on the latter as long as queries
// have the same order, and keys and values share the former:
//   column 8 c + j of the scores is token 32 (c / 4) + 16 (j / 4) + 8 (j / 2 % 2) + 2 (c % 4) + j % 2
//   chunk k of 8 dimensions is 32 (k / 4) + 4 (k % 4) + {0, 1, 2, 3, 16, 17, 18, 19} over codes,
//                              32 (k / 4) + 2 (k % 4) + {0, 1, 8, 9, 16, 17, 24, 25} over `full` tiles of a `full` cache
// and where dimensions are an odd multiple of 16, the last two chunks 8 k + {0, ..., 7} over codes.
// Numbers of a tile are relative to a power of two that its scalars give, so that 16-bit floats hold them whatever their size.
#pragma once

#include "kernels/cuda/kv_attend_tile.cuh"
#include "kernels/cuda/kv_prefill_wgmma.cuh"
#include "kernels/cuda/kv_rotate.cuh"

namespace tersor::kernels::cuda {

inline constexpr int kPrefillTokens = 64;  // of a tile

/// What a kernel is made for. Kinds of codes have kernels of their own, because the compiler shares out registers over all of a kernel.
/// wide: turboquant with 5 or 6 bits on a side.
enum class PrefillKind { full, turboquant, wide, affine };

template <int D_, class T_, PrefillKind kKind_>
struct PrefillShape {
  using T = T_;  // of operands
  static constexpr int D = D_;
  static constexpr PrefillKind kKind = kKind_;
  static constexpr bool kCoded = kKind != PrefillKind::full;
  static constexpr int kGroups = 2, kRows = 64 * kGroups, kConsumers = 128 * kGroups, kThreads = kConsumers + 256;
  static constexpr int kStages = 3;
  static constexpr int kKeyRows = D / 8 * kCoreStride, kKeyBytes = 8 * kKeyRows;        // eight tokens, all
  static constexpr int kValueRows = 8 * kCoreStride, kValueBytes = D / 8 * kValueRows;  // eight dimensions, all
  static constexpr int kQueryRow = D + 8;                                               // numbers
  static constexpr int kValues = kStages * kKeyBytes, kQueries = kValues + kStages * kValueBytes;
  // Tiles of codes as they come from memory, of each side: slots of tiles with even numbers, and of those with odd ones.
  static constexpr int kSlots = 2, kSlot = kCoded ? side_bytes(Code::affine8, D) : 0;
  static constexpr int kRaw = kQueries + kRows * kQueryRow * 2;
  static constexpr int kScratch = kRaw + 4 * kSlots * kSlot;
  static constexpr int kShared = kScratch + (WarpVector<D>::kCore > 1 ? kRows / 16 * D * 4 : 0);
  static_assert(kShared <= 225 * 1024);
};

template <class S>
struct PrefillShared {
  uint64_t key_full[S::kStages], key_empty[S::kStages], value_full[S::kStages], value_empty[S::kStages];
  uint64_t raw_full[2][2][S::kSlots], raw_empty[2][2][S::kSlots];  // [side][parity]
  float key_scale[S::kStages][2];                                  // of stored keys, of each half of the tokens
  int16_t value_exponent[S::kStages][2];                           // of stored values, of even and odd blocks of 16 dimensions
  int value_top[2];                                                // the highest so far
};

__device__ __forceinline__ void barrier_init_count(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, const uint2& x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
/// Which stage or slot comes next.
template <int N>
struct Cursor {
  static constexpr int kCount = N;
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++at == N) at = 0, phase ^= 1;
  }
};
template <int N>
__device__ __forceinline__ void wait_full(uint64_t (&barriers)[N], const Cursor<N>& c) {
  barrier_wait(shared_address(&barriers[c.at]), c.phase);
}
/// At first all are empty.
template <int N>
__device__ __forceinline__ void wait_empty(uint64_t (&barriers)[N], const Cursor<N>& c) {
  barrier_wait(shared_address(&barriers[c.at]), c.phase ^ 1);
}
/// Other blocks will want the same bytes.
__device__ __forceinline__ void copy_kept(uint32_t to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/// 2^n, -126 <= n <= 127.
__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

/// The tiles that rows at positions `first` to `last` see, in order.
struct TileWalk {
  const AttendParams& p;
  int first, last;
  int index = -1, tile = 0, left = 0;  // segment; the next tile of it
  int clear_begin = 0, clear_end = 0;  // tiles of it that all rows see whole, if scores are logits

  __device__ __forceinline__ int low(const AttendSegment& s, int position) const {
    const int lo = max(s.lo_abs, position + s.lo_rel);
    return p.sliding_window > 0 ? max(lo, position - p.sliding_window + 1) : lo;
  }
  __device__ __forceinline__ int high(const AttendSegment& s, int position) const {
    const int hi = min(s.end, max(s.hi_abs, position + s.hi_rel));
    return p.causal ? min(hi, position + 1) : hi;
  }
  __device__ __forceinline__ const AttendSegment& segment() const { return p.segments[index]; }
  /// The position of the first token of the tile that next() has found, and how many tokens of it there are.
  __device__ __forceinline__ int position() const { return segment().first + (tile - 1) * kPrefillTokens; }
  __device__ __forceinline__ int tokens() const { return segment().end - position(); }
  /// Whether all rows see all of the tile, and scores are logits.
  __device__ __forceinline__ bool clear() const { return tile > clear_begin && tile <= clear_end; }
  __device__ __forceinline__ bool next() {
    while (left == 0) {
      if (++index >= p.segment_count) return false;
      const AttendSegment& s = p.segments[index];
      tile = max(0, low(s, first) - s.first) / kPrefillTokens;
      left = max(0, (max(0, high(s, last) - s.first) + kPrefillTokens - 1) / kPrefillTokens - tile);
      clear_begin = (max(0, low(s, last) - s.first) + kPrefillTokens - 1) / kPrefillTokens;
      clear_end = p.soft_cap <= 0 && p.mask == nullptr ? max(0, high(s, first) - s.first) / kPrefillTokens : 0;
    }
    --left, ++tile;
    return true;
  }
};

}  // namespace tersor::kernels::cuda
