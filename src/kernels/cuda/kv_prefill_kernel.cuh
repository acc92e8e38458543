// The prefill kernel: two warpgroups of queries multiply what a third one decodes.
#pragma once

#include "kernels/cuda/kv_prefill.h"
#include "kernels/cuda/kv_prefill_codes.cuh"
#include "kernels/cuda/kv_prefill_full.cuh"
#include "kernels/cuda/kv_prefill_softmax.cuh"

namespace tersor::kernels::cuda {

/// Which stage of shared memory comes next.
template <class S>
struct StageCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == S::kStages) stage = 0, phase ^= 1;
  }
};
template <class S>
__device__ __forceinline__ void wait_stage(uint64_t (&barriers)[S::kStages], const StageCursor<S>& at, uint32_t flip = 0) {
  barrier_wait(shared_address(&barriers[at.stage]), at.phase ^ flip);
}
/// A warp's part of a stage is written.
__device__ __forceinline__ void publish(uint64_t* barrier, int lane) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// One of the warps that decode: keys (side 0) or values, part `which` of two.
template <class S, int kSide>
struct Decoding {
  const AttendParams& p;
  PrefillShared<S>& shared;
  uint32_t memory;
  size_t batch, head;
  int which, lane;
  StageCursor<S> at;
  int top = -127;  // values' exponent

  __device__ __forceinline__ uint64_t (&full())[S::kStages] { return kSide == 0 ? shared.key_full : shared.value_full; }
  __device__ __forceinline__ uint64_t (&empty())[S::kStages] { return kSide == 0 ? shared.key_empty : shared.value_empty; }
  __device__ __forceinline__ uint32_t stage_memory() const {
    return memory + (kSide == 0 ? at.stage * S::kKeyBytes : S::kValues + at.stage * S::kValueBytes);
  }
  __device__ __forceinline__ const uint8_t* tile_of(const TileWalk& walk, int tile_bytes) const {
    const AttendSegment& s = walk.segment();
    return s.tiles + batch * s.batch_stride + head * s.head_stride + static_cast<size_t>(walk.tile - 1) * tile_bytes;
  }

  /// Tiles of codes of one segment, from the one that the walk has found to its last. tile_bytes: of both sides; offset: of this one.
  template <Code C>
  __device__ __forceinline__ void codes(TileWalk& walk, int tile_bytes, int offset) {
    using Tile = std::conditional_t<kSide == 0, KeyCodes<S::D, C>, ValueCodes<S::D, C>>;
    // Each kind of code has its own: what they share would be kept in registers that none of them has to spare.
    int lane = this->lane, which = this->which;
    asm volatile("" : "+r"(lane), "+r"(which));
    const Levels& levels = kSide == 0 ? p.key_levels : p.value_levels;
    const OffsetDecoder<C> decoder(levels);
    const uint8_t* from = tile_of(walk, tile_bytes) + offset;
    int tokens = walk.tokens();
    Tile now, next;
    if constexpr (Tile::kAhead) now.load(from, which, lane);
#pragma unroll 1
    for (int left = walk.left;; --left) {
      if constexpr (Tile::kAhead) {
        if (left > 0) next.load(from + tile_bytes, which, lane);
      } else {
        now.load(from, which, lane);
      }
      wait_stage<S>(empty(), at, 1);
      if (tokens < kPrefillTokens) now.cut(tokens, which, lane);
      if constexpr (kSide == 0) {
        const float scale = now.template store<S>(stage_memory(), decoder, levels, which, lane);
        if (lane == 0) shared.key_scale[at.stage][which] = scale;
      } else {
        top = max(top, now.exponent() - Tile::kUnit);
        now.template store<S>(stage_memory(), decoder, top + Tile::kUnit, which, lane);
        if (lane == 0) shared.value_exponent[at.stage][which] = top;
      }
      publish(&full()[at.stage], lane);
      at.advance();
      if (left == 0) break;
      from += tile_bytes, tokens -= kPrefillTokens;
      if constexpr (Tile::kAhead) now = next;
    }
    walk.tile += walk.left, walk.left = 0;
  }
  /// The same over `full` tiles.
  __device__ __forceinline__ void full_tiles(TileWalk& walk) {
    using Tile = std::conditional_t<kSide == 0, KeyFull<S::D>, ValueFull<S::D>>;
    constexpr int kBytes = kPrefillTokens / codec::kFragmentFullTokens * Tile::kTile;
    const bool half = p.full_type == Number::f16;
    const uint8_t* from = tile_of(walk, kBytes);
    int tokens = walk.tokens();
#pragma unroll 1
    for (int left = walk.left;; --left) {
      Tile now;
      if constexpr (!S::kCoded) now.load(from, tokens, which, lane);
      wait_stage<S>(empty(), at, 1);
      if constexpr (kSide == 0) {
        float scale = 1;
        if constexpr (S::kCoded)
          scale = convert_keys<S>(stage_memory(), from, tokens, half, which, lane);
        else
          now.template store<S>(stage_memory(), which, lane);
        if (lane == 0) shared.key_scale[at.stage][which] = scale;
      } else {
        if constexpr (S::kCoded)
          top = convert_values<S>(stage_memory(), from, tokens, half, 1 / value_factor(p), top, which, lane);
        else
          top = 0, now.template store<S>(stage_memory(), tokens, which, lane);
        if (lane == 0) shared.value_exponent[at.stage][which] = top;
      }
      publish(&full()[at.stage], lane);
      at.advance();
      if (left == 0) break;
      from += kBytes, tokens -= kPrefillTokens;
    }
    walk.tile += walk.left, walk.left = 0;
  }
  __device__ __forceinline__ void run(TileWalk walk, Code keys, Code values) {
    const int offset = kSide == 0 ? 0 : side_bytes(keys, S::D), bytes = side_bytes(keys, S::D) + side_bytes(values, S::D);
    while (walk.next()) {
      if (!S::kCoded || walk.segment().full) {
        full_tiles(walk);
        continue;
      }
      if constexpr (S::kCoded) switch (kSide == 0 ? keys : values) {
          case Code::turbo1: codes<Code::turbo1>(walk, bytes, offset); break;
          case Code::turbo2: codes<Code::turbo2>(walk, bytes, offset); break;
          case Code::turbo3: codes<Code::turbo3>(walk, bytes, offset); break;
          case Code::turbo4: codes<Code::turbo4>(walk, bytes, offset); break;
          case Code::affine2: codes<Code::affine2>(walk, bytes, offset); break;
          case Code::affine4: codes<Code::affine4>(walk, bytes, offset); break;
          case Code::affine8: codes<Code::affine8>(walk, bytes, offset); break;
          case Code::full: break;  // not in a shape of codes
        }
    }
  }
};

/// One of the warpgroups that multiply.
template <class S>
__device__ __forceinline__ void multiply(const AttendParams& p, PrefillShared<S>& shared, uint8_t* memory, TileWalk walk,
                                         PrefillQueries<S>& q) {
  const int lane = threadIdx.x & 31;
  const uint32_t base = shared_address(memory);
  PrefillSoftmax<S> state(q);
  StageCursor<S> key, value;
  const auto scores = [&](float(&s)[32]) {
    wait_stage<S>(shared.key_full, key);
    const uint64_t keys = core_descriptor(base + key.stage * S::kKeyBytes, S::kKeyRows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i)
      CoreProduct<typename S::T, 64>::run(s, q.words[i], keys + i * (2 * kCoreStride >> 4), i > 0);
    wgmma_commit();
  };
  const auto outputs = [&](const uint32_t(&weights)[4][4]) {
    const uint64_t values = core_descriptor(base + S::kValues + value.stage * S::kValueBytes, S::kValueRows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) CoreProduct<typename S::T, S::D>::run(state.out, weights[i], values + i * (2 * kCoreStride >> 4), 1);
    wgmma_commit();
  };
  const auto release = [&](uint64_t(&barriers)[S::kStages], StageCursor<S>& at) {
    if (lane == 0) barrier_arrive(&barriers[at.stage]);
    at.advance();
  };
  float s[32];
  uint32_t weights[4][4];
  bool more = walk.next();
  if (more) {
    scores(s);
    wgmma_wait<0>();
    state.weigh(p, walk, shared.key_scale[key.stage], q, s);
    release(shared.key_empty, key);
    state.rescale();
    state.pack(s, weights);
    more = walk.next();
    while (more) {
      scores(s);
      wait_stage<S>(shared.value_full, value);
      state.follow_exponent(shared.value_exponent[value.stage]);
      outputs(weights);
      wgmma_wait<1>();
      state.weigh(p, walk, shared.key_scale[key.stage], q, s);
      release(shared.key_empty, key);
      wgmma_wait<0>();
      release(shared.value_empty, value);
      state.rescale();
      state.pack(s, weights);
      more = walk.next();
    }
    wait_stage<S>(shared.value_full, value);
    state.follow_exponent(shared.value_exponent[value.stage]);
    outputs(weights);
    wgmma_wait<0>();
  }
  state.write(p, q);
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) prefill_kernel(const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ PrefillShared<S> shared;
  const AttendParams& p = params.attend;
  const int kv_head = blockIdx.x % p.kv_heads, batch = blockIdx.x / p.kv_heads, block = gridDim.y - 1 - blockIdx.y;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = block * S::kRows, last = min(first + S::kRows, p.group * p.rows) - 1;
  const TileWalk walk{p, p.position + first / p.group, p.position + last / p.group};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init_count(&shared.key_full[i], 2), barrier_init_count(&shared.value_full[i], 2);
      barrier_init_count(&shared.key_empty[i], S::kConsumers / 32), barrier_init_count(&shared.value_empty[i], S::kConsumers / 32);
    }
    barrier_init_done();
  }
  __syncthreads();
  wait_for_earlier();
  constexpr int kConsumerRegisters = S::kCoded ? 200 : 192, kProducerRegisters = S::kCoded ? 104 : 120;
  if (warp >= S::kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    const int part = warp - S::kConsumers / 32;
    const uint32_t base = shared_address(memory);
    const auto b = static_cast<size_t>(batch), h = static_cast<size_t>(kv_head);
    if (part < 2)
      Decoding<S, 0>{p, shared, base, b, h, part, lane}.run(walk, params.keys, params.values);
    else
      Decoding<S, 1>{p, shared, base, b, h, part - 2, lane}.run(walk, params.keys, params.values);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    const AttendView view{p, batch, kv_head, first + warp * 16};
    PrefillQueries<S> q(view, memory, warp, lane);
    multiply<S>(p, shared, memory, walk, q);
  }
}

}  // namespace tersor::kernels::cuda
