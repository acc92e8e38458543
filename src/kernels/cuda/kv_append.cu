// A block encodes the new tokens of up to 64 slots of one head and side: its warps turn a token each into codes in shared memory, then
// every thread packs the words of one lane of a unit, leaving the bits of older tokens as they are.
#include "kernels/cuda/kv_append.h"

#include "kernels/cuda/kv_rotate.cuh"

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

template <int D, Code C>
__device__ __forceinline__ void encode_turbo(const float (&v)[WarpVector<D>::kEach], const Levels& levels, bool keys, int slot, int lane,
                                             TileCodes<D>& tile) {
  using W = WarpVector<D>;
  constexpr int kBits = codec::packing_bits(packing_of(C)), kCount = 1 << kBits;
  float norm2 = 0;
#pragma unroll
  for (const float x : v) norm2 = fmaf(x, x, norm2);
  norm2 = sum_over_warp(norm2);
  // In units of the levels' grid, whose thresholds u[i] + u[i + 1] + 1 are whole; below 1e-30 the scalar is 0 and codes do not matter.
  const float scale = sqrtf(D / fmaxf(norm2, 1e-30f)) / levels.step;
  float product = 0, square = 0;
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) {
    const float y = v[j] * scale;
    int code = 0, level = 2 * levels.u[0] + 1;
#pragma unroll
    for (int i = 1; i < kCount; ++i)
      if (y > static_cast<float>(levels.u[i - 1] + levels.u[i] + 1)) code = i, level = 2 * levels.u[i] + 1;
    if (!W::inside(lane, j)) continue;
    product = fmaf(v[j], static_cast<float>(level), product);
    square += static_cast<float>(level * level);
    tile.codes[slot * TileCodes<D>::kRow + W::index(lane, j)] = static_cast<uint8_t>(codec::stored_code(packing_of(C), code));
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
  constexpr float kSteps = (1 << codec::packing_bits(packing_of(C))) - 1;
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
template <int D, bool kKeys, codec::Packing kPacking>
__device__ __forceinline__ void pack_lane(uint8_t* codes, int unit, int lane, const TileCodes<D>& tile) {
  constexpr int kWords = codec::packing_words(kPacking), kBits = codec::packing_bits(kPacking);
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
        const codec::BitOfWord to = codec::bit_of_word(kPacking, reg, byte, bit);
        words[to.word] |= (code >> bit & 1u) << to.shift;
        mask[to.word] |= 1u << to.shift;
      }
    }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t* const to = reinterpret_cast<uint32_t*>(codes + unit * kWords * 128 + codec::word_offset(kWords, lane, w));
    if (mask[w] == ~0u)
      *to = words[w];
    else if (mask[w])
      *to = (*to & ~mask[w]) | words[w];
  }
}

template <int D, bool kKeys, Code C>
__device__ __forceinline__ void pack_tile(uint8_t* side, const TileCodes<D>& tile) {
  uint8_t* const codes = side + (kKeys ? 0 : scalar_bytes(C, D));
  uint16_t* const scalars = reinterpret_cast<uint16_t*>(side + (kKeys ? code_bytes(C, D) : 0));
  for (int i = threadIdx.x; i < D / 16 * 32; i += kThreads) pack_lane<D, kKeys, packing_of(C)>(codes, i / 32, i % 32, tile);
  for (int i = threadIdx.x; i < scalar_rows(C, D) * kTokens; i += kThreads) {
    const int token = i % kTokens;
    if (token >= tile.low && token < tile.high)
      scalars[i / kTokens * kTokens + codec::scalar_index(token)] = tile.scalars[i / kTokens][token];
  }
}

// The vector of one new token in the stored basis.
template <int D>
__device__ __forceinline__ void load_token(const AppendParams& p, const AppendJob& job, int batch, int head, int token, int lane,
                                           float* scratch, float (&v)[WarpVector<D>::kEach]) {
  const int side = job.keys ? 0 : 1;
  load_vector<D>(row_of(p.rows[side], batch, head, token), p.rows[side], lane, v);
  if (p.sanitise) {
#pragma unroll
    for (float& x : v) x = x != x ? 0.0f : fminf(fmaxf(x, -kInputMax), kInputMax);
  }
  rotate<D>(v, p.rotations[side], lane, scratch);
}

template <int D, Code C>
__device__ void encode_tile(const AppendParams& p, const AppendJob& job, uint8_t* tiles, int batch, int head, int slot0, TileCodes<D>& tile,
                            float* scratch) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int low = max(job.at, slot0) - slot0, high = min(job.at + job.count, slot0 + kTokens) - slot0;
  if (threadIdx.x == 0) tile.low = low, tile.high = high;
  for (int slot = low + warp; slot < high; slot += kWarps) {
    float v[WarpVector<D>::kEach];
    load_token<D>(p, job, batch, head, job.begin + slot0 + slot - job.at, lane, scratch + warp * D, v);
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

template <int D>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ AppendParams p) {
  __shared__ TileCodes<D> tile;
  __shared__ float scratch[WarpVector<D>::kCore > 1 ? kWarps * D : 1];
  int index = 0;
  while (index + 1 < p.jobs && static_cast<int>(blockIdx.x) >= p.job[index + 1].first_block) ++index;
  const AppendJob& job = p.job[index];
  const int block = blockIdx.x - job.first_block, head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads;
  const int slot0 = (job.at / kTokens + block) * kTokens;
  uint8_t* const tiles = job.tiles + batch * job.batch_stride + head * job.head_stride;
  const auto run = [&]<Code C>() { encode_tile<D, C>(p, job, tiles, batch, head, slot0, tile, scratch); };
  switch (job.code) {
    case Code::full: return run.template operator()<Code::full>();
    case Code::turbo1: return run.template operator()<Code::turbo1>();
    case Code::turbo2: return run.template operator()<Code::turbo2>();
    case Code::turbo3: return run.template operator()<Code::turbo3>();
    case Code::turbo4: return run.template operator()<Code::turbo4>();
    case Code::affine2: return run.template operator()<Code::affine2>();
    case Code::affine4: return run.template operator()<Code::affine4>();
    case Code::affine8: return run.template operator()<Code::affine8>();
  }
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
  Launch launch;
  launch.function = kernel_for(dim);
  launch.grid = dim3(blocks, static_cast<unsigned>(params.heads * batch));
  launch.block = dim3(kThreads);
  return launch;
}

}  // namespace tersor::kernels::cuda
