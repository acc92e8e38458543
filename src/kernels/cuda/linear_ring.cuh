// Packed tiles streaming through a warp's own ring in shared memory: a few tiles are always on their way.
#pragma once

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/linear_ptx.cuh"

namespace tersor::kernels::cuda {

constexpr int kMostStages = 6;

/// The tiles of one warp, in its order: for each of its strips, its tiles along k.
struct PackedWalk {
  int strip, strip_end, strip_step;  // the next tile
  int tile, tile_first, tile_end, tile_step;
  int tiles;  // of a strip in the packed array

  __device__ __forceinline__ bool more() const { return strip < strip_end; }
  __device__ __forceinline__ size_t next() {
    const size_t at = static_cast<size_t>(strip) * tiles + tile;
    tile += tile_step;
    if (tile >= tile_end) { tile = tile_first, strip += strip_step; }
    return at;
  }
};

/// A ring of `stages` tiles of BYTES bytes with one barrier each. All lanes call every function together.
template <int BYTES>
class PackedRing {
 public:
  __device__ __forceinline__ PackedRing(const uint8_t* packed, uint8_t* ring, uint64_t* barriers, int stages, PackedWalk walk)
      : packed_(packed), ring_(ring), barriers_(shared_address(barriers)), stages_(stages), walk_(walk) {
    if ((threadIdx.x & 31) == 0)
#pragma unroll 1
      for (int i = 0; i < stages; ++i) barrier_init(barriers_ + 8 * i, TERSOR_BULK_COPY ? 1 : 32);
    if (walk_.tile_first >= walk_.tile_end) walk_.strip = walk_.strip_end;
#if TERSOR_BULK_COPY
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    __syncwarp();
  }

  /// Sends for the first `early` tiles; for as many more as there is room for.
  __device__ __forceinline__ void start(int early) {
#pragma unroll 1
    for (int i = 0; i < early; ++i) fetch(i);
  }
  __device__ __forceinline__ void fill(int early) {
#pragma unroll 1
    for (int i = early; i < stages_; ++i) fetch(i);
  }
  /// The tile at the head, once it is here.
  __device__ __forceinline__ const uint8_t* wait() {
    barrier_wait(barriers_ + 8 * stage_, phase_);
    return ring_ + stage_ * BYTES;
  }
  /// Gives the head's place to the next tile on its way.
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch(stage_);
    if (++stage_ == stages_) { stage_ = 0, phase_ ^= 1; }
  }

 private:
  __device__ __forceinline__ void fetch(int stage) {
    if (!walk_.more()) return;
    const uint8_t* from = packed_ + walk_.next() * BYTES;
    const uint32_t to = shared_address(ring_ + stage * BYTES), bar = barriers_ + 8 * stage;
    const int lane = threadIdx.x & 31;
#if TERSOR_BULK_COPY
    if (lane == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(BYTES) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(to),
                   "l"(from), "r"(BYTES), "r"(bar), "l"(read_once_policy())
                   : "memory");
    }
#else
    for (int i = lane * 16; i < BYTES; i += 512) copy_16(to + i, from + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
  }

  const uint8_t* packed_;
  uint8_t* ring_;
  uint32_t barriers_;
  int stages_, stage_ = 0;
  uint32_t phase_ = 0;
  PackedWalk walk_;
};

}  // namespace tersor::kernels::cuda
