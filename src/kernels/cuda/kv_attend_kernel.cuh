// The attention kernel: a block takes a share of the tiles of one KV head, each of its warps every kWarps-th tile of that share, through
// its own ring of half tiles that bulk copies fill. Warps merge in shared memory; the last block of a head to arrive merges the shares.
#pragma once

#include <cstddef>

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/kv_attend_merge.cuh"
#include "kernels/cuda/kv_attend_tile.cuh"

namespace tersor::kernels::cuda {

template <int D_, int NT_, int kWarps_, Code K_, Code V_, int kResident_ = 1>
struct AttendShape {
  static constexpr int D = D_, NT = NT_, kWarps = kWarps_;
  static constexpr int kResident = kResident_;  // blocks that a processor holds at once
  static constexpr Code K = K_, V = V_;
  static constexpr bool kCoded = K != Code::full;
  static constexpr int kFullSide = side_bytes(Code::full, D);
  // A tile comes in two copies: keys with their scalars and the values' scalars, then the values' codes.
  static constexpr int kFirstHalf = kCoded ? side_bytes(K, D) + scalar_bytes(V, D) : kFullSide;
  static constexpr int kSecondHalf = kCoded ? code_bytes(V, D) : kFullSide;
  static constexpr int kTileBytes = kFirstHalf + kSecondHalf;
  static constexpr int kLargest = kFirstHalf > kSecondHalf ? kFirstHalf : kSecondHalf;
  static constexpr int kStage = ((kLargest > kFullSide ? kLargest : kFullSide) + 127) & ~127;
  static constexpr int kRingLimit = kResident > 1 ? 104 * 1024 : 200 * 1024;
  static constexpr int kStages = kWarps * kStage * 3 <= (kWarps > 8 ? 140 * 1024 : kRingLimit) ? 3 : 2;
  static constexpr int kRing = kWarps * kStages * kStage;
  static constexpr int kQueryRow = D + 16;                      // bytes; keeps columns off each other's banks
  static constexpr int kQueryBytes = NT * 8 * kQueryRow;        // 8-bit queries
  static constexpr int kFullQueryBytes = NT * 8 * (D + 8) * 2;  // 16-bit queries
  static constexpr int kScratch = WarpVector<D>::kCore > 1 ? kWarps* D * 4 : 0;
  static constexpr int kShared = kRing + kQueryBytes + kFullQueryBytes + kScratch;
  static_assert(kStages * kStage >= NT * 4 * D * 4, "a warp's outputs must fit into its ring");
  static_assert(kResident * (kShared + 3 * 1024) <= 228 * 1024);
};

/// The ring of one warp, as lane 0 fills it: the tiles `ordinal`, ordinal + kWarps, ... below `end`, each in two halves.
template <class S>
struct TileRing {
  const AttendParams& p;
  uint32_t stages, barriers;  // addresses
  size_t batch, head;
  int ordinal, end;
  const uint8_t* next = nullptr;  // tile
  int left = 0, segment = 0;      // of its segment, for this warp
  uint32_t first_bytes = 0, second_bytes = 0;

  /// Finds the segment of `ordinal`.
  __device__ __forceinline__ void enter() {
    for (; segment < p.segment_count; ++segment) {
      const AttendSegment& s = p.segments[segment];
      const int limit = min(end, s.ordinal + s.visit_end - s.visit_begin);
      if (ordinal >= limit) continue;
      left = (limit - ordinal + S::kWarps - 1) / S::kWarps;
      first_bytes = s.full ? S::kFullSide : S::kFirstHalf, second_bytes = s.full ? S::kFullSide : S::kSecondHalf;
      const size_t tile = static_cast<size_t>(s.visit_begin + ordinal - s.ordinal);
      next = s.tiles + batch * s.batch_stride + head * s.head_stride + tile * (first_bytes + second_bytes);
      return;
    }
  }
  /// Whether there is a next tile and all its tokens stand before `position`.
  __device__ __forceinline__ bool ends_before(int position) const {
    if (segment >= p.segment_count || ordinal >= end) return false;
    const AttendSegment& s = p.segments[segment];
    const int tokens = s.full ? codec::kFragmentFullTokens : codec::kFragmentTokens;
    return s.first + (s.visit_begin + ordinal - s.ordinal + 1) * tokens <= position;
  }
  /// Asks for the next half, which is a second one or not, into a stage.
  template <bool kSecond>
  __device__ __forceinline__ void ask(int stage) {
    if (left == 0) return;
    if constexpr (kSecond) {
      bulk_copy(stages + stage * S::kStage, next + first_bytes, second_bytes, barriers + 8 * stage);
      next += S::kWarps * (first_bytes + second_bytes), ordinal += S::kWarps;
      if (--left == 0) enter();
    } else {
      bulk_copy(stages + stage * S::kStage, next, first_bytes, barriers + 8 * stage);
    }
  }
};

/// The ring as the warp reads it, half after half.
template <class S>
struct RingReader {
  TileRing<S>& ring;
  const uint8_t* memory;
  int lane, stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ const uint8_t* wait() {
    barrier_wait(ring.barriers + 8 * stage, phase);
    return memory + stage * S::kStage;
  }
  /// The half (a second one or not) has been read by the whole warp: its stage is filled anew.
  template <bool kSecond>
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane == 0) ring.template ask<((S::kStages & 1) != 0) != kSecond>(stage);
    if (++stage == S::kStages) stage = 0, phase ^= 1;
  }
};

/// Shared memory besides the ring.
template <class S>
struct AttendShared {
  uint32_t* bytes;  // [NT][2 parts][4 vectors][kQueryRow / 4]
  uint16_t* full;   // [8 NT][D + 8]
  float* scratch;   // [kWarps][D] or null
  float(*largest);  // [4 NT] of each vector
  float(*sums);     // [4 NT][key groups]
};

template <class S>
__device__ __forceinline__ void store_query(const AttendParams& p, const AttendShared<S>& shared, int vector, int lane,
                                            const float (&v)[WarpVector<S::D>::kEach]) {
  using W = WarpVector<S::D>;
  constexpr int kGroups = AttendQuery<S::D, S::NT, S::K>::kGroups;
  float most = 0;
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) most = fmaxf(most, fabsf(v[j]));
  most = max_over_warp(most);
  const float inverse = most > 0 ? 127 / most : 0.0f;
  float sums[kGroups] = {};
  uint8_t* const high_row = reinterpret_cast<uint8_t*>(shared.bytes) + ((vector >> 2) * 8 + (vector & 3)) * S::kQueryRow;
  uint16_t* const full_row = shared.full + ((vector >> 2) * 8 + 2 * (vector & 3)) * (S::D + 8);
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) {
    if (!W::inside(lane, j)) continue;
    const int d = W::index(lane, j);
    const float x = v[j] * inverse;
    const int high = __float2int_rn(x), low = __float2int_rn((x - high) * kLowParts);
    if constexpr (S::kCoded) {
      high_row[d] = static_cast<uint8_t>(high), high_row[4 * S::kQueryRow + d] = static_cast<uint8_t>(low);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) sums[g] += kGroups == 1 || d / kAffineGroup == g ? high + low / kLowParts : 0.0f;
    }
    if (S::kCoded && !p.any_full) continue;
    const uint32_t both = FullTile<S::D, S::NT, S::V>::split(x * (1 / 127.0f), p.full_type == Number::f16);
    full_row[d] = static_cast<uint16_t>(both), full_row[S::D + 8 + d] = static_cast<uint16_t>(both >> 16);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) sums[g] = sum_over_warp(sums[g]);
  if (lane != 0) return;
  shared.largest[vector] = most;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) shared.sums[vector * kGroups + g] = sums[g];
}

template <class S>
__device__ __forceinline__ void load_query(const AttendView& view, const AttendShared<S>& shared, int lane,
                                           AttendQuery<S::D, S::NT, S::K>& q) {
  constexpr int kGroups = AttendQuery<S::D, S::NT, S::K>::kGroups;
  const AttendParams& p = view.p;
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < S::NT; ++n) {
    if constexpr (S::kCoded) {
      const uint32_t* const row = shared.bytes + ((n * 2 + (g & 1)) * 4 + (g >> 1)) * (S::kQueryRow / 4) + t;
      if constexpr (AttendQuery<S::D, S::NT, S::K>::kShared) {
        q.rows[n] = row;
      } else {
#pragma unroll
        for (int i = 0; i < S::D / 16; ++i) q.bytes[n][i] = row[4 * i];
      }
#pragma unroll
      for (int i = 0; i < kGroups; ++i) q.sum[n][i] = shared.sums[(4 * n + t) * kGroups + i];
      const float half = is_affine(S::K) ? 0.0f : 0.5f * q.sum[n][0], whole = rintf(half);
      q.start[n][0] = kMagicBits + static_cast<int>(whole), q.start[n][1] = kLowMagicBits + __float2int_rn((half - whole) * kLowParts);
    }
    const float scale = shared.largest[4 * n + t] * p.scale * 1.44269504f;
    q.full_scale[n] = scale;
    q.scale[n] = fminf(scale * ((is_affine(S::K) ? 1.0f : 2 * p.key_levels.step) / 127), 1e12f) * kScalarUnit;
  }
}

/// A tile of 16-bit numbers.
template <class S>
__device__ __forceinline__ void attend_full(RingReader<S>& reader, const AttendView& view, const TilePlace& place, const uint16_t* queries,
                                            const float (&scale)[S::NT], AttendState<S::D, S::NT, S::V>& state) {
  using Tile = FullTile<S::D, S::NT, S::V>;
  const bool half = view.p.full_type == Number::f16;
  const int lane = reader.lane;
  float s[S::NT][2];
  const uint8_t* const keys = reader.wait();
#pragma unroll
  for (int n = 0; n < S::NT; ++n) Tile::scores(keys, queries, n, scale[n], lane, half, s[n]);
  reader.template release<false>();
#pragma unroll
  for (int n = 0; n < S::NT; ++n) Tile::filter(s[n], view, place, n, lane);
  const uint8_t* const values = reader.wait();
#pragma unroll
  for (int n = 0; n < S::NT; ++n) Tile::outputs(values, s[n], state, n, lane, half);
  reader.template release<true>();
}

template <class S>
struct Decoders {
  DecoderOf<S::kCoded ? S::K : Code::turbo4> keys;
  DecoderOf<S::kCoded ? S::V : Code::turbo4> values;
  float step2;  // twice the step of the values' levels
  __device__ explicit Decoders(const AttendParams& p) : keys(p.key_levels), values(p.value_levels), step2(2 * p.value_levels.step) {}
};

/// Walks over the warp's tiles, segment by segment.
template <class S>
__device__ __forceinline__ void attend_tiles(RingReader<S>& reader, const AttendView& view, int ordinal, int end,
                                             const uint16_t* full_queries, const Decoders<S>& decoders,
                                             const AttendQuery<S::D, S::NT, S::K>& q, AttendState<S::D, S::NT, S::V>& state) {
  constexpr int NT = S::NT;
  const AttendParams& p = view.p;
  const float step2 = decoders.step2;
  constexpr int kFoldAfter = is_wide(S::V) ? 128 : 512;  // tiles, before integer sums could overflow
  int since_fold = 0;
  for (int i = 0; i < p.segment_count; ++i) {
    const AttendSegment& segment = p.segments[i];
    const int limit = min(end, segment.ordinal + segment.visit_end - segment.visit_begin);
#pragma unroll 1
    for (; ordinal < limit; ordinal += S::kWarps) {
      const TilePlace place{segment, segment.visit_begin + ordinal - segment.ordinal};
      if (!S::kCoded || segment.full) {
        attend_full<S>(reader, view, place, full_queries, q.full_scale, state);
      } else if constexpr (S::kCoded) {
        using Tile = CodedTile<S::D, NT, S::K, S::V>;
        float s[NT][8];
        uint32_t b[NT][AttendState<S::D, NT, S::V>::kGroups][4];
        const uint8_t* const keys = reader.wait();
        Tile::scores(keys, decoders.keys, q, reader.lane, s);
        Tile::filter(s, view, place, reader.lane);
        Tile::weights(keys + side_bytes(S::K, S::D), s, state, reader.lane, (++since_fold & (kFoldAfter - 1)) == 0, step2, b);
        reader.template release<false>();
        Tile::outputs(reader.wait(), decoders.values, b, reader.lane, state);
        reader.template release<true>();
      }
    }
  }
  if constexpr (S::kCoded) {
#pragma unroll
    for (int n = 0; n < NT; ++n) state.fold(n, step2);
  }
}

/// Brings the parameters' later parts into the constant cache while other warps prepare the query: each first touch takes long.
__device__ __forceinline__ void touch_parameters(const AttendParams& p) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(&p);
  constexpr int kWords = offsetof(AttendParams, segments) / 4 + sizeof(AttendSegment) / 4, kLine = 16;
#pragma unroll
  for (int i = 0; i < kWords; i += kLine) {
    uint32_t word = words[i];
    asm volatile("" : "+r"(word));
  }
}

template <class S>
__global__ void __launch_bounds__(S::kWarps * 32, S::kResident) attend_kernel(const __grid_constant__ AttendParams p) {
  constexpr int D = S::D, NT = S::NT, kVectors = 4 * NT;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[S::kWarps * S::kStages];
  __shared__ float largest[kVectors], sums[kVectors * AttendQuery<D, NT, S::K>::kGroups];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  // Divisions would stand at the head of everything: the grid is split, then head and set of vectors, then batch.
  const int split = blockIdx.x, kv_head = p.sets == 1 ? blockIdx.y : blockIdx.y / p.sets, set = blockIdx.y - kv_head * p.sets;
  const AttendView view{p, static_cast<int>(blockIdx.z), kv_head, set * kVectors};
  const int begin = split * p.share + min(split, p.longer_shares), first = begin + warp, end = begin + p.share + (split < p.longer_shares);
  const AttendShared<S> shared{reinterpret_cast<uint32_t*>(memory + S::kRing),
                               reinterpret_cast<uint16_t*>(memory + S::kRing + S::kQueryBytes),
                               reinterpret_cast<float*>(memory + S::kRing + S::kQueryBytes + S::kFullQueryBytes), largest, sums};
  uint8_t* const own = memory + warp * S::kStages * S::kStage;
  TileRing<S> ring{p,
                   shared_address(own),
                   shared_address(barriers + warp * S::kStages),
                   static_cast<size_t>(view.batch),
                   static_cast<size_t>(view.kv_head),
                   first,
                   end};

  // The query is read before the first bulk copies, which would delay it by microseconds; more copies are asked for once it has come.
  const auto load = [&](int vector, float(&v)[WarpVector<D>::kEach]) {
    const int of_all = view.vector0 + vector, row = view.row(of_all);
#pragma unroll
    for (float& x : v) x = 0;
    if (row < p.rows)
      load_vector<D>(row_of(p.queries, view.batch, view.kv_head * p.group + of_all - row * p.group, row), p.queries, lane, v);
  };
  if (lane == 0) {
    for (int i = 0; i < S::kStages; ++i) barrier_init(ring.barriers + 8 * i);
    barrier_init_done();
    ring.enter();
  }
  if (warp >= kVectors) touch_parameters(p);
  let_next_start();
  // What older tokens left was written before the kernels began that are still running: only the new tokens' tiles must wait.
  const bool old = lane == 0 && ring.ends_before(p.position);
  if (old) ring.template ask<false>(0);
  wait_for_earlier();
  float v[WarpVector<D>::kEach] = {};
  if (warp < kVectors) load(warp, v);
  if (lane == 0 && !old) ring.template ask<false>(0);
  __syncwarp();
  const Decoders<S> decoders(p);
  for (int vector = warp; vector < kVectors; vector += S::kWarps) {
    if (vector != warp) load(vector, v);
    rotate<D>(v, p.key_rotation, lane, shared.scratch + warp * D);
    store_query<S>(p, shared, vector, lane, v);
  }
  __syncthreads();
  if (lane == 0) {
    ring.template ask<true>(1);
    if constexpr (S::kStages > 2) ring.template ask<false>(2);
  }

  AttendQuery<D, NT, S::K> query;
  load_query<S>(view, shared, lane, query);
  AttendState<D, NT, S::V> state;
  state.clear();
  RingReader<S> reader{ring, own, lane};
  attend_tiles<S>(reader, view, first, end, shared.full, decoders, query, state);
  merge<S>(view, split, state, memory, shared.scratch);
}

}  // namespace tersor::kernels::cuda
