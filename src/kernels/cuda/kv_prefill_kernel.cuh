// The prefill kernel: two warpgroups of queries multiply what two others decode.
#pragma once

#include "kernels/cuda/kv_prefill.h"
#include "kernels/cuda/kv_prefill_codes.cuh"
#include "kernels/cuda/kv_prefill_full.cuh"
#include "kernels/cuda/kv_prefill_softmax.cuh"

namespace tersor::kernels::cuda {

/// A warp's part of a stage is written.
__device__ __forceinline__ void publish(uint64_t* barrier, int lane) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// One of the warps that decode: keys (side 0) or values, part `which` of four. The first of the four sends for tiles.
template <class S, int kSide>
struct Decoding {
  const AttendParams& p;
  PrefillShared<S>& shared;
  uint8_t* memory;
  size_t batch, head;
  int which, lane;
  Cursor<S::kStages> stage = {};
  Cursor<S::kSlots> slot = {}, asked = {};
  int top = -127;  // values' exponent

  __device__ __forceinline__ uint64_t (&full())[S::kStages] { return kSide == 0 ? shared.key_full : shared.value_full; }
  __device__ __forceinline__ uint64_t (&empty())[S::kStages] { return kSide == 0 ? shared.key_empty : shared.value_empty; }
  __device__ __forceinline__ uint32_t stage_memory() const {
    return shared_address(memory + (kSide == 0 ? stage.at * S::kKeyBytes : S::kValues + stage.at * S::kValueBytes));
  }
  __device__ __forceinline__ uint8_t* slot_memory(const Cursor<S::kSlots>& c) const {
    return memory + S::kRaw + (kSide * S::kSlots + c.at) * S::kSlot;
  }
  __device__ __forceinline__ const uint8_t* tile_of(const TileWalk& walk, int tile_bytes) const {
    const AttendSegment& s = walk.segment();
    return s.tiles + batch * s.batch_stride + head * s.head_stride + static_cast<size_t>(walk.tile - 1) * tile_bytes;
  }

  /// Sends for `pieces` pieces of a tile, `stride` bytes from one to the next.
  __device__ __forceinline__ void ask(const uint8_t* from, int bytes, int pieces, int stride) {
    wait_empty(shared.raw_empty[kSide], asked);
    uint64_t* const barrier = &shared.raw_full[kSide][asked.at];
    expect_bytes(barrier, pieces * bytes);
    for (int i = 0; i < pieces; ++i) copy_kept(shared_address(slot_memory(asked)) + i * bytes, from + i * stride, bytes, barrier);
    asked.advance();
  }
  /// The tiles of a segment, from the one that the walk has found to its last: `send(i)` asks for one of them, `load(slot, i)` takes it into
  /// registers, `store(i)` leaves it in the present stage.
  template <class Send, class Load, class Store>
  __device__ __forceinline__ void tiles(TileWalk& walk, const Send& send, const Load& load, const Store& store) {
    const int count = walk.left + 1;
    const bool asks = which == 0 && lane == 0;
    if (asks)
      for (int i = 0; i < S::kSlots - 1 && i < count; ++i) send(i);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (asks && i + S::kSlots - 1 < count) send(i + S::kSlots - 1);
      __syncwarp();
      wait_full(shared.raw_full[kSide], slot);
      load(slot_memory(slot), i);
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.raw_empty[kSide][slot.at]);
      slot.advance();
      wait_empty(empty(), stage);
      store(i);
      publish(&full()[stage.at], lane);
      stage.advance();
    }
    walk.tile += walk.left, walk.left = 0;
  }

  /// tile_bytes: of both sides; offset: of this one.
  template <Code C>
  __device__ __forceinline__ void codes(TileWalk& walk, int tile_bytes, int offset) {
    using Tile = std::conditional_t<kSide == 0, KeyCodes<S::D, C>, ValueCodes<S::D, C>>;
    const Levels& levels = kSide == 0 ? p.key_levels : p.value_levels;
    const NumberDecoder<C> decoder(levels);
    const uint8_t* const from = tile_of(walk, tile_bytes) + offset;
    const int tokens = walk.tokens();
    Tile tile;
    tiles(
        walk,
        [&](int i) { ask(from + static_cast<size_t>(i) * tile_bytes, side_bytes(C, S::D), 1, 0); },
        [&](const uint8_t* raw, int i) {
          tile.load(raw, which, lane);
          if (tokens - i * kPrefillTokens < kPrefillTokens) tile.cut(tokens - i * kPrefillTokens, which, lane);
        },
        [&](int) {
          if constexpr (kSide == 0) {
            const float scale = tile.template store<S>(stage_memory(), decoder, levels, which, lane);
            if (lane == 0 && which < 2) shared.key_scale[stage.at][which] = scale;
          } else {
            top = max(top, tile.exponent() - Tile::kUnit);
            tile.template store<S>(stage_memory(), decoder, top + Tile::kUnit, which, lane);
            if (lane == 0) shared.value_exponent[stage.at][which] = top;
          }
        });
  }
  /// `full` tiles of a `full` cache.
  __device__ __forceinline__ void full_tiles(TileWalk& walk) {
    using Tile = std::conditional_t<kSide == 0, KeyFull<S::D>, ValueFull<S::D>>;
    constexpr int kTiles = kPrefillTokens / codec::kFragmentFullTokens, kBytes = side_bytes(Code::full, S::D), kStride = 2 * kBytes;
    const uint8_t* const from = tile_of(walk, kTiles * kStride) + kSide * kBytes;
    const int tokens = walk.tokens();
    const auto rest = [&](int i) { return tokens - i * kPrefillTokens; };
    Tile tile;
    tiles(
        walk,
        [&](int i) {
          const int there = min(kTiles, (rest(i) + codec::kFragmentFullTokens - 1) / codec::kFragmentFullTokens);
          ask(from + static_cast<size_t>(i) * kTiles * kStride, kBytes, there, kStride);
        },
        [&](const uint8_t* raw, int i) { tile.load(raw, rest(i), which, lane); },
        [&](int i) {
          if constexpr (kSide == 0) {
            tile.template store<S>(stage_memory(), which, lane);
            if (lane == 0 && which < 2) shared.key_scale[stage.at][which] = 1;
          } else {
            tile.template store<S>(stage_memory(), rest(i), which, lane);
            if (lane == 0) shared.value_exponent[stage.at][which] = 0;
          }
        });
  }
  /// `full` tiles beside codes, straight from memory.
  __device__ __forceinline__ void converted_tiles(TileWalk& walk) {
    constexpr int kBytes = kPrefillTokens / codec::kFragmentFullTokens * 2 * side_bytes(Code::full, S::D);
    const bool half = p.full_type == Number::f16;
    const uint8_t* from = tile_of(walk, kBytes);
    int tokens = walk.tokens();
#pragma unroll 1
    for (int left = walk.left; left >= 0; --left, from += kBytes, tokens -= kPrefillTokens) {
      wait_empty(empty(), stage);
      if constexpr (kSide == 0) {
        const float scale = convert_keys<S>(stage_memory(), from, tokens, half, which, lane);
        if (lane == 0 && which < 2) shared.key_scale[stage.at][which] = scale;
      } else {
        top = convert_values<S>(stage_memory(), from, tokens, half, 1 / value_factor(p), top, which, lane);
        if (lane == 0) shared.value_exponent[stage.at][which] = top;
      }
      publish(&full()[stage.at], lane);
      stage.advance();
    }
    walk.tile += walk.left, walk.left = 0;
  }
  __device__ __forceinline__ void run(TileWalk walk, Code keys, Code values) {
    const int offset = kSide == 0 ? 0 : side_bytes(keys, S::D), bytes = side_bytes(keys, S::D) + side_bytes(values, S::D);
    while (walk.next()) {
      if constexpr (!S::kCoded) {
        full_tiles(walk);
      } else if (walk.segment().full) {
        converted_tiles(walk);
      } else switch (kSide == 0 ? keys : values) {
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
  Cursor<S::kStages> key, value;
  const auto scores = [&](float(&s)[32]) {
    wait_full(shared.key_full, key);
    const uint64_t keys = core_descriptor(base + key.at * S::kKeyBytes, S::kKeyRows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i)
      CoreProduct<typename S::T, 64>::run(s, q.words[i], keys + i * (2 * kCoreStride >> 4), i > 0);
    wgmma_commit();
  };
  const auto outputs = [&](const uint32_t(&weights)[4][4]) {
    const uint64_t values = core_descriptor(base + S::kValues + value.at * S::kValueBytes, S::kValueRows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) CoreProduct<typename S::T, S::D>::run(state.out, weights[i], values + i * (2 * kCoreStride >> 4), 1);
    wgmma_commit();
  };
  const auto release = [&](uint64_t(&barriers)[S::kStages], Cursor<S::kStages>& at) {
    if (lane == 0) barrier_arrive(&barriers[at.at]);
    at.advance();
  };
  float s[32];
  uint32_t weights[4][4];
  bool more = walk.next();
  if (more) {
    scores(s);
    wgmma_wait<0>();
    state.weigh(p, walk, shared.key_scale[key.at], q, s);
    release(shared.key_empty, key);
    state.rescale();
    state.pack(s, weights);
    more = walk.next();
    while (more) {
      scores(s);
      wait_full(shared.value_full, value);
      state.follow_exponent(shared.value_exponent[value.at]);
      outputs(weights);
      wgmma_wait<1>();
      state.weigh(p, walk, shared.key_scale[key.at], q, s);
      release(shared.key_empty, key);
      wgmma_wait<0>();
      release(shared.value_empty, value);
      state.rescale();
      state.pack(s, weights);
      more = walk.next();
    }
    wait_full(shared.value_full, value);
    state.follow_exponent(shared.value_exponent[value.at]);
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
      barrier_init_count(&shared.key_full[i], 4), barrier_init_count(&shared.value_full[i], 4);
      barrier_init_count(&shared.key_empty[i], S::kConsumers / 32), barrier_init_count(&shared.value_empty[i], S::kConsumers / 32);
    }
    for (int i = 0; i < 2 * S::kSlots; ++i)
      barrier_init_count(&shared.raw_full[0][0] + i, 1), barrier_init_count(&shared.raw_empty[0][0] + i, 4);
    barrier_init_done();
  }
  __syncthreads();
  wait_for_earlier();
  constexpr int kConsumerRegisters = 184, kProducerRegisters = 72;
  if (warp >= S::kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    const int part = warp - S::kConsumers / 32;
    const auto b = static_cast<size_t>(batch), h = static_cast<size_t>(kv_head);
    if (part < 4)
      Decoding<S, 0>{p, shared, memory, b, h, part, lane}.run(walk, params.keys, params.values);
    else
      Decoding<S, 1>{p, shared, memory, b, h, part - 4, lane}.run(walk, params.keys, params.values);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    const AttendView view{p, batch, kv_head, first + warp * 16};
    PrefillQueries<S> q(view, memory, warp, lane);
    multiply<S>(p, shared, memory, walk, q);
  }
}

}  // namespace tersor::kernels::cuda
