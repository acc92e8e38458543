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

/// One of the warps that decode keys (side 0) or values: half `which` of every other tile. The first of the two sends for these tiles.
template <class S, int kSide>
struct Decoding {
  const AttendParams& p;
  PrefillShared<S>& shared;
  uint8_t* memory;
  size_t batch, head;
  int which, parity, lane;
  int number = 0;  // of the next tile
  Cursor<S::kStages> stage = {};
  Cursor<S::kSlots> slot = {}, asked = {};

  __device__ __forceinline__ uint64_t (&full())[S::kStages] { return kSide == 0 ? shared.key_full : shared.value_full; }
  __device__ __forceinline__ uint64_t (&empty())[S::kStages] { return kSide == 0 ? shared.key_empty : shared.value_empty; }
  __device__ __forceinline__ uint32_t stage_memory() const {
    return shared_address(memory + (kSide == 0 ? stage.at * S::kKeyBytes : S::kValues + stage.at * S::kValueBytes));
  }
  __device__ __forceinline__ uint8_t* slot_memory(const Cursor<S::kSlots>& c) const {
    return memory + S::kRaw + ((2 * kSide + parity) * S::kSlots + c.at) * S::kSlot;
  }
  __device__ __forceinline__ const uint8_t* tile_of(const TileWalk& walk, int tile_bytes) const {
    const AttendSegment& s = walk.segment();
    return s.tiles + batch * s.batch_stride + head * s.head_stride + static_cast<size_t>(walk.tile - 1) * tile_bytes;
  }

  /// The exponent that a tile of values is stored with, which is left for those who read it. Numbers stay near each other if it rarely
  /// changes: it is the highest so far, as far as the other warps' tiles are known.
  __device__ __forceinline__ int top_with(int exponent) {
    const int so_far = *static_cast<volatile int*>(&shared.value_top[which]), top = max(exponent, so_far);
    if (lane == 0) {
      if (top > so_far) atomicMax_block(&shared.value_top[which], top);
      shared.value_exponent[stage.at][which] = static_cast<int16_t>(top);
    }
    return top;
  }
  /// Sends for a tile's side.
  __device__ __forceinline__ void ask(const uint8_t* from, int bytes) {
    wait_empty(shared.raw_empty[kSide][parity], asked);
    uint64_t* const barrier = &shared.raw_full[kSide][parity][asked.at];
    expect_bytes(barrier, bytes);
    copy_kept(shared_address(slot_memory(asked)), from, bytes, barrier);
    asked.advance();
  }
  /// The tiles of a segment, from the one that the walk has found to its last: `send(i)` asks for one of them, `load(slot, i)` takes it
  /// into registers, `store(i)` leaves it in the present stage.
  template <class Send, class Load, class Store>
  __device__ __forceinline__ void tiles(TileWalk& walk, const Send& send, const Load& load, const Store& store) {
    const int count = walk.left + 1, first = (number ^ parity) & 1;
    const bool asks = which == 0 && lane == 0;
    if (asks)
      for (int i = 0; i < S::kSlots && first + 2 * i < count; ++i) send(first + 2 * i);
    if (first) stage.advance();
#pragma unroll 1
    for (int i = first; i < count; i += 2) {
      __syncwarp();
      wait_full(shared.raw_full[kSide][parity], slot);
      load(slot_memory(slot), i);
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.raw_empty[kSide][parity][slot.at]);
      slot.advance();
      if (asks && i + 2 * S::kSlots < count) send(i + 2 * S::kSlots);
      __syncwarp();
      wait_empty(empty(), stage);
      store(i);
      publish(&full()[stage.at], lane);
      stage.advance();
      if (i + 1 < count) stage.advance();
    }
    number += count;
    walk.tile += walk.left, walk.left = 0;
  }

  /// tile_bytes: of both sides; offset: of this one.
  template <Code C>
  __device__ __forceinline__ void codes(TileWalk& walk, int tile_bytes, int offset) {
    using Tile = std::conditional_t<kSide == 0, KeyCodes<S::D, C>, ValueCodes<S::D, C>>;
    const Levels& levels = kSide == 0 ? p.key_levels : p.value_levels;
    const NumbersOf<C> decoder(levels);
    const uint8_t* const from = tile_of(walk, tile_bytes) + offset;
    const int tokens = walk.tokens();
    Tile tile;
    tiles(
        walk, [&](int i) { ask(from + static_cast<size_t>(i) * tile_bytes, side_bytes(C, S::D)); },
        [&](const uint8_t* raw, int i) {
          tile.load(raw, which, lane);
          if (tokens - i * kPrefillTokens < kPrefillTokens) tile.cut(tokens - i * kPrefillTokens, which, lane);
        },
        [&](int) {
          if constexpr (kSide == 0) {
            const float scale = tile.template store<S>(stage_memory(), decoder, levels, which, lane);
            if (lane == 0) shared.key_scale[stage.at][which] = scale;
          } else {
            const int top = top_with(tile.exponent() - Tile::kUnit);
            tile.template store<S>(stage_memory(), decoder, top + Tile::kUnit, which, lane);
          }
        });
  }
  /// `full` tiles, straight from memory: `store(tile, tokens)` leaves one in the present stage.
  template <class Store>
  __device__ __forceinline__ void full_tiles(TileWalk& walk, const Store& store) {
    constexpr int kBytes = kPrefillTokens / codec::kFragmentFullTokens * 2 * side_bytes(Code::full, S::D);
    const uint8_t* from = tile_of(walk, kBytes);
    int tokens = walk.tokens();
#pragma unroll 1
    for (int left = walk.left; left >= 0; --left, from += kBytes, tokens -= kPrefillTokens) {
      if (((number++ ^ parity) & 1) == 0) {
        store(from, tokens);
        publish(&full()[stage.at], lane);
      }
      stage.advance();
    }
    walk.tile += walk.left, walk.left = 0;
  }
  /// Those of a `full` cache as they are.
  __device__ __forceinline__ void plain_tiles(TileWalk& walk) {
    full_tiles(walk, [&](const uint8_t* from, int tokens) {
      std::conditional_t<kSide == 0, KeyFull<S::D>, ValueFull<S::D>> tile;
#pragma unroll 1
      for (int piece = 0; piece < tile.kPieces; ++piece) {
        tile.load(from, tokens, which, piece, lane);
        if (piece == 0) wait_empty(empty(), stage);
        tile.template store<S>(stage_memory(), tokens, which, piece, lane);
      }
    });
  }
  /// Those beside codes converted.
  __device__ __forceinline__ void converted_tiles(TileWalk& walk) {
    const bool half = p.full_type == Number::f16;
    full_tiles(walk, [&](const uint8_t* from, int tokens) {
      wait_empty(empty(), stage);
      if constexpr (kSide == 0) {
        const float scale = convert_keys<S>(stage_memory(), from, tokens, half, which, lane);
        if (lane == 0) shared.key_scale[stage.at][which] = scale;
      } else {
        convert_values<S>(stage_memory(), from, tokens, half, 1 / value_factor(p), which, lane, [&](int top) { return top_with(top); });
      }
    });
  }
  __device__ __forceinline__ void codes_of(TileWalk& walk, Code code, int bytes, int offset) {
    if constexpr (S::kKind == PrefillKind::wide) {
      if (code == Code::turbo6) return codes<Code::turbo6>(walk, bytes, offset);
      if (code == Code::turbo5) return codes<Code::turbo5>(walk, bytes, offset);
      return codes<Code::turbo4>(walk, bytes, offset);
    } else if constexpr (S::kKind == PrefillKind::turboquant) {
      if (code == Code::turbo4) return codes<Code::turbo4>(walk, bytes, offset);
      if (code == Code::turbo3) return codes<Code::turbo3>(walk, bytes, offset);
      if (code == Code::turbo2) return codes<Code::turbo2>(walk, bytes, offset);
      return codes<Code::turbo1>(walk, bytes, offset);
    } else if constexpr (S::kKind == PrefillKind::affine) {
      if (code == Code::affine4) return codes<Code::affine4>(walk, bytes, offset);
      if (code == Code::affine8) return codes<Code::affine8>(walk, bytes, offset);
      return codes<Code::affine2>(walk, bytes, offset);
    }
  }
  __device__ __forceinline__ void run(TileWalk walk, Code keys, Code values) {
    const int offset = kSide == 0 ? 0 : side_bytes(keys, S::D), bytes = side_bytes(keys, S::D) + side_bytes(values, S::D);
    while (walk.next()) {
      if constexpr (!S::kCoded) {
        plain_tiles(walk);
      } else if (walk.segment().full) {
        converted_tiles(walk);
      } else {
        codes_of(walk, kSide == 0 ? keys : values, bytes, offset);
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
  float key_scale[2] = {1, 1};
  const auto scores = [&](float(&s)[32]) {
    wait_full(shared.key_full, key);
    if constexpr (S::kCoded) key_scale[0] = shared.key_scale[key.at][0], key_scale[1] = shared.key_scale[key.at][1];
    const uint64_t keys = core_descriptor(base + key.at * S::kKeyBytes, S::kKeyRows);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::D / 16; ++i) CoreProduct<typename S::T, 64>::run(s, q.words[i], keys + i * (2 * kCoreStride >> 4), i > 0);
    wgmma_commit();
  };
  uint32_t exponents = 0;
  const auto wait_values = [&] {
    wait_full(shared.value_full, value);
    if constexpr (S::kCoded) exponents = *reinterpret_cast<const uint32_t*>(shared.value_exponent[value.at]);
  };
  const auto outputs = [&](const uint32_t(&weights)[4][4]) {
    const uint64_t values = core_descriptor(base + S::kValues + value.at * S::kValueBytes, S::kValueRows);
    if constexpr (S::kCoded) state.follow_exponent(exponents);
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
    state.weigh(p, walk, key_scale, q, s);
    release(shared.key_empty, key);
    state.rescale();
    state.pack(s, weights);
    more = walk.next();
    while (more) {
      wait_values();
      scores(s);
      outputs(weights);
      wgmma_wait<1>();
      state.weigh(p, walk, key_scale, q, s);
      release(shared.key_empty, key);
      wgmma_wait<0>();
      release(shared.value_empty, value);
      state.rescale();
      state.pack(s, weights);
      more = walk.next();
    }
    wait_values();
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
    for (int i = 0; i < 4 * S::kSlots; ++i)
      barrier_init_count(&shared.raw_full[0][0][0] + i, 1), barrier_init_count(&shared.raw_empty[0][0][0] + i, 2);
    shared.value_top[0] = shared.value_top[1] = -127;
    barrier_init_done();
  }
  __syncthreads();
  wait_for_earlier();
  constexpr bool kMore = S::kKind == PrefillKind::affine || S::kKind == PrefillKind::wide;
  constexpr int kConsumerRegisters = kMore ? 184 : 192, kProducerRegisters = kMore ? 72 : 64;
  if (warp >= S::kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    const int part = warp - S::kConsumers / 32;
    const auto b = static_cast<size_t>(batch), h = static_cast<size_t>(kv_head);
    if (part < 4)
      Decoding<S, 0>{p, shared, memory, b, h, part & 1, part >> 1, lane}.run(walk, params.keys, params.values);
    else
      Decoding<S, 1>{p, shared, memory, b, h, part & 1, part >> 1 & 1, lane}.run(walk, params.keys, params.values);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    const AttendView view{p, batch, kv_head, first + warp * 16};
    PrefillQueries<S> q(view, memory, warp, lane);
    multiply<S>(p, shared, memory, walk, q);
  }
}

}  // namespace tersor::kernels::cuda
