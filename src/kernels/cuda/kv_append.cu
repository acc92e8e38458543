// A block encodes the new tokens of up to 64 slots of one head and side: its warps turn a token each into codes in shared memory, then
// every thread packs the words of one lane of a unit, leaving the bits of older tokens as they are.
#include "kernels/cuda/kv_append.h"

#include <type_traits>

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/kv_rotate.cuh"
#include "kernels/cuda/turn.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTokens = codec::kFragmentTokens;
constexpr float kInputMax = 65504.0f;  // as in codec/scalar.h
constexpr float kScalarMax = 0x1.ff8p+23f;
constexpr uint32_t kExponentShift = (127u - 40u) << 23;

// codec::encode_norm and encode_scale.
__device__ __forceinline__ uint16_t encode_norm(float x) {
  if (!(x > 0x1p-40f)) return 0;
  const uint32_t bits = __float_as_uint(fminf(x, kScalarMax)) - kExponentShift;
  return static_cast<uint16_t>((bits + 0xfffu + (bits >> 13 & 1u)) >> 13);
}
__device__ __forceinline__ uint16_t encode_scale(float x) {
  if (!(fabsf(x) > 0x1p-40f)) return 0;
  const uint32_t bits = __float_as_uint(fminf(fabsf(x), kScalarMax)) - kExponentShift;
  return static_cast<uint16_t>((x < 0 ? 0x8000u : 0u) | (bits + 0x1fffu + (bits >> 14 & 1u)) >> 14);
}
__device__ __forceinline__ float decode_scale(uint16_t bits) {
  const uint32_t rest = bits & 0x7fffu;
  return rest == 0 ? 0.0f : __uint_as_float(static_cast<uint32_t>(bits & 0x8000u) << 16 | ((rest << 14) + kExponentShift));
}

// The new tokens of a tile: codes as stored, and scalars.
template <int D>
struct TileCodes {
  static constexpr int kRow = D + 4;  // keeps rows word-aligned and off each other's banks
  uint8_t codes[kTokens * kRow];
  uint16_t scalars[8][kTokens];
  int low, high;  // slots [low, high) within the tile are new
};

/// The nearest of many levels: a binary search over the positive thresholds, which the warp's lanes hold. Like the levels of either sign
/// beside each other, a number on a threshold takes the lower level.
template <Code C>
struct ManyLevels {
  static constexpr int kHalf = 1 << (code_bits(C) - 1);
  int level, threshold;  // of this lane: level number `lane`, and the threshold above it; multiples of the step
  __device__ __forceinline__ ManyLevels(const Levels& levels, int lane) {
    const int i = lane % kHalf, shared = C == Code::turbo6 ? 8 : 1;
    level = 2 * (levels.u[i] + 4 * levels.high[i / shared] + 2) + 1;
    threshold = (level + __shfl_down_sync(~0u, level, 1)) / 2;
  }
  /// The code of a number in steps, and its level.
  __device__ __forceinline__ int nearest(float y, int& to) const {
    const bool plus = y > 0;
    const float size = fabsf(y);
    int at = 0;
#pragma unroll
    for (int step = kHalf / 2; step; step /= 2) {
      const float edge = static_cast<float>(__shfl_sync(~0u, threshold, at + step - 1));
      if (plus ? size > edge : size >= edge) at += step;
    }
    to = __shfl_sync(~0u, level, at);
    if (!plus) to = -to;
    return plus ? kHalf + at : kHalf - 1 - at;
  }
};

/// The same for few levels, one comparison for each.
template <Code C>
struct FewLevels {
  const Levels& levels;
  __device__ __forceinline__ FewLevels(const Levels& from, int) : levels(from) {}
  __device__ __forceinline__ int nearest(float y, int& to) const {
    int code = 0;
    to = 2 * levels.u[0] + 1;
#pragma unroll
    for (int i = 1; i < 1 << code_bits(C); ++i)
      if (y > static_cast<float>(levels.u[i - 1] + levels.u[i] + 1)) code = i, to = 2 * levels.u[i] + 1;
    return code;
  }
};

template <int D, Code C>
__device__ __forceinline__ void encode_turbo(const float (&v)[WarpVector<D>::kEach], const Levels& levels, bool keys, int slot, int lane,
                                             TileCodes<D>& tile) {
  using W = WarpVector<D>;
  float norm2 = 0;
#pragma unroll
  for (const float x : v) norm2 = fmaf(x, x, norm2);
  norm2 = sum_over_warp(norm2);
  // In units of the levels' grid, whose thresholds u[i] + u[i + 1] + 1 are whole; below 1e-30 the scalar is 0 and codes do not matter.
  const float scale = sqrtf(D / fmaxf(norm2, 1e-30f)) / levels.step;
  float product = 0, square = 0;
  const std::conditional_t<is_wide(C), ManyLevels<C>, FewLevels<C>> book(levels, lane);
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) {
    int level;
    const int code = book.nearest(v[j] * scale, level);
    if (!W::inside(lane, j)) continue;
    product = fmaf(v[j], static_cast<float>(level), product);
    square += static_cast<float>(level * level);
    tile.codes[slot * TileCodes<D>::kRow + W::index(lane, j)] = static_cast<uint8_t>(form_of(C).stored(code));
  }
  product = sum_over_warp(product) * levels.step, square = sum_over_warp(square) * levels.step * levels.step;
  // Keys: |k|^2 / <k, c> makes inner products unbiased. Values: <v, c> / |c|^2 is the least-squares scalar.
  const bool some = norm2 > 0 && product > 0;
  if (lane == 0) tile.scalars[0][slot] = encode_norm(!some ? 0.0f : keys ? norm2 / product : product / square);
}

template <int D, Code C>
__device__ __forceinline__ void encode_affine(const float (&v)[WarpVector<D>::kEach], int slot, int lane, TileCodes<D>& tile) {
  using W = WarpVector<D>;
  constexpr int kGroups = scalar_groups(C, D);
  constexpr float kSteps = (1 << code_bits(C)) - 1;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const auto mine = [&](int j) { return W::inside(lane, j) && W::index(lane, j) / kAffineGroup == g; };
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int j = 0; j < W::kEach; ++j)
      if (mine(j)) low = fminf(low, v[j]), high = fmaxf(high, v[j]);
    low = -max_over_warp(-low), high = max_over_warp(high);
    // codec::affine_from_range
    const bool low_edge = fabsf(low) > fabsf(high);
    const float edge = low_edge ? low : high;
    float scale = __fdiv_rn(high - low, kSteps);
    if (!low_edge) scale = -scale;
    if (scale != 0) {
      const float zero_code = rintf(__fdiv_rn(edge, scale));
      if (zero_code != 0 && fabsf(zero_code) <= kSteps) scale = __fdiv_rn(edge, zero_code);
    }
    const uint16_t scale_bits = encode_scale(scale), bias_bits = encode_scale(edge);
    const float stored_scale = decode_scale(scale_bits), stored_bias = decode_scale(bias_bits);
#pragma unroll
    for (int j = 0; j < W::kEach; ++j)
      if (mine(j)) {
        const float code = stored_scale == 0 ? 0.0f : fminf(fmaxf(rintf(__fdiv_rn(v[j] - stored_bias, stored_scale)), 0.0f), kSteps);
        tile.codes[slot * TileCodes<D>::kRow + W::index(lane, j)] = static_cast<uint8_t>(code);
      }
    if (lane == 0) tile.scalars[g][slot] = scale_bits, tile.scalars[kGroups + g][slot] = bias_bits;
  }
}

// A token's numbers to its places in its `full` tile of 16.
template <int D>
__device__ __forceinline__ void store_full(const float (&v)[WarpVector<D>::kEach], const AppendJob& job, uint8_t* side, Number type,
                                           int slot, int lane) {
  using W = WarpVector<D>;
  const int token = slot % codec::kFragmentFullTokens;
#pragma unroll
  for (int j = 0; j < W::kEach; ++j)
    if (W::inside(lane, j)) {
      const int d = W::index(lane, j);
      store_number(side, type, job.keys ? codec::full_key_index(token, d) : codec::full_value_index(token, d), v[j]);
    }
}

// The words of one lane of one unit, old bits kept where no new token is.
template <int D, bool kKeys, codec::FragmentCode kForm>
__device__ __forceinline__ void pack_lane(uint8_t* codes, int unit, int lane, const TileCodes<D>& tile) {
  constexpr int kWords = kForm.words(), kBits = kForm.bits();
  uint32_t words[kWords] = {}, mask[kWords] = {};
#pragma unroll
  for (int reg = 0; reg < 8; ++reg)
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const codec::FragmentPlace at{unit, lane, reg, byte};
      const codec::TokenDim place = kKeys ? codec::key_of_fragment(D, at) : codec::value_of_fragment(at);
      if (place.token < tile.low || place.token >= tile.high) continue;
      const uint32_t code = tile.codes[place.token * TileCodes<D>::kRow + place.dim];
#pragma unroll
      for (int bit = 0; bit < kBits; ++bit) {
        const codec::BitOfWord to = kForm.place(reg, byte, bit);
        words[to.word] |= (code >> bit & 1u) << to.shift;
        mask[to.word] |= 1u << to.shift;
      }
    }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t* const to = reinterpret_cast<uint32_t*>(codes + unit * kWords * 128 + kForm.offset(lane, w));
    if (mask[w] == ~0u)
      *to = words[w];
    else if (mask[w])
      *to = (*to & ~mask[w]) | words[w];
  }
}

// One token's codes: little code, which comes from far away in a decode step, for the price of two atomic operations a code.
template <int D, bool kKeys, codec::FragmentCode kForm>
__device__ __forceinline__ void put_token(uint8_t* codes, int slot, const TileCodes<D>& tile) {
  constexpr int kWords = kForm.words(), kBits = kForm.bits();
  for (int dim = threadIdx.x; dim < D; dim += kThreads) {
    const uint32_t code = tile.codes[slot * TileCodes<D>::kRow + dim];
    const codec::FragmentPlace at = kKeys ? codec::key_fragment(D, slot, dim) : codec::value_fragment(slot, dim);
    uint32_t bits = 0, mask = 0;
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
      const codec::BitOfWord to = kForm.place(at.reg, at.byte, bit);
      bits |= (code >> bit & 1u) << to.shift, mask |= 1u << to.shift;
      if (bit + 1 < kBits && kForm.place(at.reg, at.byte, bit + 1).word == to.word) continue;
      uint32_t* const word = reinterpret_cast<uint32_t*>(codes + at.unit * kWords * 128 + kForm.offset(at.lane, to.word));
      atomicAnd(word, ~mask);
      atomicOr(word, bits);
      bits = mask = 0;
    }
  }
}

// So few tokens are put in one by one.
constexpr int kFewTokens = 4;

/// Sends for the lines that put_token is going to change. They may be in memory, and nothing that is waited for changes where they are.
template <int D, bool kKeys, Code C>
__device__ __forceinline__ void fetch_token(const uint8_t* side, int slot) {
  constexpr codec::FragmentCode kForm = form_of(C);
  const uint8_t* const codes = side + (kKeys ? 0 : scalar_bytes(C, D));
  const uint8_t* const scalars = side + (kKeys ? code_bytes(C, D) : 0);
  const auto fetch = [](const uint8_t* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); };
  for (int dim = threadIdx.x; dim < D; dim += kThreads) {
    const codec::FragmentPlace at = kKeys ? codec::key_fragment(D, slot, dim) : codec::value_fragment(slot, dim);
    const uint8_t* const unit = codes + at.unit * kForm.words() * 128;
    fetch(unit + kForm.offset(at.lane, 0));
    if constexpr (kForm.words() > 1) fetch(unit + kForm.offset(at.lane, kForm.words() - 1));
  }
  if (static_cast<int>(threadIdx.x) < scalar_rows(C, D)) fetch(scalars + (threadIdx.x * kTokens + codec::scalar_index(slot)) * 2);
}

template <int D, bool kKeys, Code C>
__device__ __forceinline__ void pack_tile(uint8_t* side, const TileCodes<D>& tile) {
  uint8_t* const codes = side + (kKeys ? 0 : scalar_bytes(C, D));
  uint16_t* const scalars = reinterpret_cast<uint16_t*>(side + (kKeys ? code_bytes(C, D) : 0));
  if (tile.high - tile.low <= kFewTokens) {
    for (int slot = tile.low; slot < tile.high; ++slot) put_token<D, kKeys, form_of(C)>(codes, slot, tile);
  } else {
    for (int i = threadIdx.x; i < D / 16 * 32; i += kThreads) pack_lane<D, kKeys, form_of(C)>(codes, i / 32, i % 32, tile);
  }
  for (int i = threadIdx.x; i < scalar_rows(C, D) * kTokens; i += kThreads) {
    const int token = i % kTokens;
    if (token >= tile.low && token < tile.high)
      scalars[i / kTokens * kTokens + codec::scalar_index(token)] = tile.scalars[i / kTokens][token];
  }
}

/// Turns a query (side 0) or key that `row` holds and v has been loaded from, its norm first.
template <int D>
__device__ __forceinline__ void turn_vector(const AppendParams& p, int side, const void* row, const Rows& rows, int token, int lane,
                                            const float2* angles, float (&v)[WarpVector<D>::kEach]) {
  const AppendTurn& turn = p.turn;
  using W = WarpVector<D>;
  const void* norm = turn.norms[side];
  float scale = 1;
  if (norm) {
    float squares = 0;
#pragma unroll
    for (const float x : v) squares = fmaf(x, x, squares);
    scale = rsqrtf(sum_over_warp(squares) / D + turn.eps);
  }
  const auto normed = [&](float x, int d) { return norm ? x * scale * load_number(norm, turn.norm_type, d) : x; };
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) {
    const int d = W::index(lane, j);
    if (!W::inside(lane, j)) continue;
    v[j] = normed(v[j], d);
    if (d >= 2 * turn.pairs) continue;
    const bool second = d >= turn.pairs;
    const int mate = second ? d - turn.pairs : d + turn.pairs;
    const float other = normed(load_number(row, rows.type, mate * rows.dim_stride), mate);
    const int i = second ? mate : d;
    const float2 angle = p.tokens == 1 ? angles[i] : turn_of(turn.position + token, turn.inv_freq[i], turn.scale);
    v[j] = second ? v[j] * angle.x + other * angle.y : v[j] * angle.x - other * angle.y;
  }
}

/// Queries of up to 64 tokens of one KV head's group.
template <int D>
__device__ void turn_queries(const AppendParams& p, int block, int kv_head, int batch, const float2* angles) {
  const AppendTurn& turn = p.turn;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = block * kTokens, count = min(kTokens, p.tokens - first);
  for (int i = warp; i < count * turn.group; i += kWarps) {
    const int token = first + i / turn.group, head = kv_head * turn.group + i % turn.group;
    const void* row = row_of(turn.queries, batch, head, token);
    float v[WarpVector<D>::kEach];
    load_vector<D>(row, turn.queries, lane, v);
    turn_vector<D>(p, 0, row, turn.queries, token, lane, angles, v);
    __syncwarp();  // all of the row is read
    const long long at = batch * turn.out_batch_stride + head * turn.out_head_stride + token * turn.out_token_stride;
#pragma unroll
    for (int j = 0; j < WarpVector<D>::kEach; ++j)
      if (WarpVector<D>::inside(lane, j)) store_number(turn.out, turn.queries.type, at + WarpVector<D>::index(lane, j), v[j]);
  }
}

// The vector of one new token in the stored basis.
template <int D>
__device__ __forceinline__ void load_token(const AppendParams& p, const AppendJob& job, int batch, int head, int token, int lane,
                                           float* scratch, const float2* angles, float (&v)[WarpVector<D>::kEach]) {
  const int side = job.keys ? 0 : 1;
  const void* row = row_of(p.rows[side], batch, head, token);
  load_vector<D>(row, p.rows[side], lane, v);
  if (job.keys && p.turn.pairs) turn_vector<D>(p, 1, row, p.rows[side], token, lane, angles, v);
  if (job.keys && p.centre) {
    const float* const centre = p.centre + (static_cast<size_t>(batch) * p.heads + head) * D;
#pragma unroll
    for (int j = 0; j < WarpVector<D>::kEach; ++j)
      if (WarpVector<D>::inside(lane, j)) v[j] -= centre[WarpVector<D>::index(lane, j)];
  }
  if (p.sanitise) {
#pragma unroll
    for (float& x : v) x = x != x ? 0.0f : fminf(fmaxf(x, -kInputMax), kInputMax);
  }
  rotate<D>(v, p.rotations[side], lane, scratch);
}

template <int D, Code C>
__device__ void encode_tile(const AppendParams& p, const AppendJob& job, uint8_t* tiles, int batch, int head, int slot0, TileCodes<D>& tile,
                            float* scratch, const float2* angles) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int low = max(job.at, slot0) - slot0, high = min(job.at + job.count, slot0 + kTokens) - slot0;
  if (threadIdx.x == 0) tile.low = low, tile.high = high;
  for (int slot = low + warp; slot < high; slot += kWarps) {
    float v[WarpVector<D>::kEach];
    load_token<D>(p, job, batch, head, job.begin + slot0 + slot - job.at, lane, scratch + warp * D, angles, v);
    if constexpr (C == Code::full)
      store_full<D>(v, job, tiles + static_cast<size_t>(slot0 + slot) / codec::kFragmentFullTokens * job.tile_bytes + job.side_offset,
                    p.full_type[job.keys ? 0 : 1], slot, lane);
    else if constexpr (is_affine(C))
      encode_affine<D, C>(v, slot, lane, tile);
    else
      encode_turbo<D, C>(v, p.levels[job.keys ? 0 : 1], job.keys, slot, lane, tile);
  }
  if constexpr (C == Code::full) return;
  __syncthreads();
  uint8_t* const side = tiles + static_cast<size_t>(slot0 / kTokens) * job.tile_bytes + job.side_offset;
  if (job.keys)
    pack_tile<D, true, C>(side, tile);
  else
    pack_tile<D, false, C>(side, tile);
}

/// Calls f<code>().
template <class Function>
__device__ __forceinline__ void with_code(Code code, const Function& f) {
  switch (code) {
    case Code::full: return f.template operator()<Code::full>();
    case Code::turbo1: return f.template operator()<Code::turbo1>();
    case Code::turbo2: return f.template operator()<Code::turbo2>();
    case Code::turbo3: return f.template operator()<Code::turbo3>();
    case Code::turbo4: return f.template operator()<Code::turbo4>();
    case Code::turbo5: return f.template operator()<Code::turbo5>();
    case Code::turbo6: return f.template operator()<Code::turbo6>();
    case Code::affine2: return f.template operator()<Code::affine2>();
    case Code::affine4: return f.template operator()<Code::affine4>();
    case Code::affine8: return f.template operator()<Code::affine8>();
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ AppendParams p) {
  __shared__ TileCodes<D> tile;
  __shared__ float scratch[WarpVector<D>::kCore > 1 ? kWarps * D : 1];
  __shared__ float2 angles[D / 2];  // of a single token
  touch_lines(p);
  if (p.turn.pairs && p.tokens == 1)
    for (int i = threadIdx.x; i < p.turn.pairs; i += kThreads) angles[i] = turn_of(p.turn.position, p.turn.inv_freq[i], p.turn.scale);
  const bool queries = static_cast<int>(blockIdx.x) >= p.append_blocks;
  int index = 0;
  while (index + 1 < p.jobs && static_cast<int>(blockIdx.x) >= p.job[index + 1].first_block) ++index;
  const AppendJob& job = p.job[index];
  const int block = blockIdx.x - job.first_block, head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads;
  const int slot0 = (job.at / kTokens + block) * kTokens;
  uint8_t* const tiles = job.tiles + batch * job.batch_stride + head * job.head_stride;
  const auto fetch = [&]<Code C>() {
    if constexpr (C != Code::full) {
      const uint8_t* const side = tiles + static_cast<size_t>(slot0 / kTokens) * job.tile_bytes + job.side_offset;
      job.keys ? fetch_token<D, true, C>(side, job.at % kTokens) : fetch_token<D, false, C>(side, job.at % kTokens);
    }
  };
  if (!queries && job.count == 1) with_code(job.code, fetch);
  __syncthreads();
  wait_for_earlier();
  let_next_start();  // not before: attention sends for older tiles before it waits, and an earlier append may have written them
  if (queries) return turn_queries<D>(p, blockIdx.x - p.append_blocks, blockIdx.y % p.heads, blockIdx.y / p.heads, angles);
  const auto run = [&]<Code C>() { encode_tile<D, C>(p, job, tiles, batch, head, slot0, tile, scratch, angles); };
  with_code(job.code, run);
}

const void* kernel_for(int dim) {
  switch (dim) {
    case 64: return reinterpret_cast<const void*>(&append_kernel<64>);
    case 80: return reinterpret_cast<const void*>(&append_kernel<80>);
    case 96: return reinterpret_cast<const void*>(&append_kernel<96>);
    case 128: return reinterpret_cast<const void*>(&append_kernel<128>);
    case 256: return reinterpret_cast<const void*>(&append_kernel<256>);
    default: return nullptr;
  }
}

}  // namespace

bool append_supports(Code, int dim) { return kernel_for(dim) != nullptr; }

Launch append_plan(AppendParams& params, int dim, int batch) {
  unsigned blocks = 0;
  for (int i = 0; i < params.jobs; ++i) {
    AppendJob& job = params.job[i];
    job.first_block = static_cast<int>(blocks);
    job.blocks = job.count ? (job.at + job.count - 1) / kTokens - job.at / kTokens + 1 : 0;
    blocks += static_cast<unsigned>(job.blocks);
  }
  params.append_blocks = static_cast<int>(blocks);
  if (params.turn.out) blocks += static_cast<unsigned>((params.tokens + kTokens - 1) / kTokens);
  Launch launch;
  launch.function = kernel_for(dim);
  launch.grid = dim3(blocks, static_cast<unsigned>(params.heads * batch));
  launch.block = dim3(kThreads);
  return launch;
}

}  // namespace tersor::kernels::cuda
