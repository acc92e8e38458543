// Embedding rows and the likeliest token.
#include "kernels/cuda/token.h"

#include "kernels/cuda/ahead.cuh"
#include "kernels/cuda/linear_values.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr int kEmbedThreads = 256, kArgmaxThreads = 512, kArgmaxBlock = 8192;  // logits of a block

/// Code k of row r of the strip whose tiles start at `tiles`: the inverse of code_place.
__device__ __forceinline__ float packed_number(const EmbedParams& p, const uint8_t* tiles, int r, int k) {
  const PackedLinear& w = p.table;
  const int size = w.scale_type == Dtype::f32 ? 4 : 2, tile = k / tile_k(w.bits), in_tile = k % tile_k(w.bits);
  const uint8_t* from = tiles + static_cast<size_t>(tile) * tile_bytes(w.bits, w.group, size);
  const int step = in_tile / 16, place = in_tile % 16, lane = (r & 7) * 4 + place % 8 / 2, upper = place & 1;
  const int reg = (r >> 3) + 2 * (place >> 3);
  uint32_t code;
  if (w.bits == 4) {
    const uint32_t word = reinterpret_cast<const uint32_t*>(from)[step / 4 * 128 + lane * 4 + step % 4];
    code = __funnelshift_r(word, word, 3) >> 4 * (reg + 4 * upper) & 15;
  } else {
    const uint32_t word = reinterpret_cast<const uint32_t*>(from)[step / 2 * 128 + lane * 4 + step % 2 * 2 + (reg >> 1)];
    code = word >> 8 * ((reg & 1) * 2 + upper) & 255;
  }
  const int groups = tile_k(w.bits) / w.group, at = (r * groups + in_tile / w.group) * 2;
  return fmaf(static_cast<float>(code), load_float(w.scale_type, from + kCodeBytes, at),
              load_float(w.scale_type, from + kCodeBytes, at + 1));
}

__global__ void __launch_bounds__(kEmbedThreads) embed_kernel(const __grid_constant__ EmbedParams p) {
  let_next_start();
  wait_for_earlier();
  const int token = blockIdx.x, k = blockIdx.y * kEmbedThreads + threadIdx.x;
  if (k >= p.table.k) return;
  const long long id = p.id_bytes == 8 ? static_cast<const long long*>(p.ids)[token] : static_cast<const int*>(p.ids)[token];
  float v = NAN;
  if (id >= 0 && id < p.rows) {
    if (p.table.bits) {
      const size_t strip_bytes = static_cast<size_t>(tiles_of(p.table.bits, p.table.k)) *
                                 tile_bytes(p.table.bits, p.table.group, p.table.scale_type == Dtype::f32 ? 4 : 2);
      const uint8_t* tiles = static_cast<const uint8_t*>(p.data) + (p.first_strip + id / kStripRows) * strip_bytes;
      v = packed_number(p, tiles, static_cast<int>(id % kStripRows), k);
    } else {
      v = load_float(p.table.scale_type, p.data, id * p.table.k + k);
    }
  }
  store_float(p.out_type, p.out, static_cast<long long>(token) * p.table.k + k, v);
}

/// Larger logits, then smaller indices, have larger keys; what nobody can pick from has the largest.
__device__ __forceinline__ unsigned long long key_of(float logit, int index) {
  if (!(logit < INFINITY)) return ~0ull;
  const uint32_t bits = __float_as_uint(logit), order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | static_cast<uint32_t>(~index);
}

__global__ void __launch_bounds__(kArgmaxThreads) argmax_kernel(const __grid_constant__ ArgmaxParams p) {
  __shared__ unsigned long long parts[kArgmaxThreads / 32];
  let_next_start();
  wait_for_earlier();
  const int row = blockIdx.y, first = blockIdx.x * kArgmaxBlock, last = min(p.count, first + kArgmaxBlock);
  const float* logits = p.logits + row * p.stride;
  unsigned long long best = 0;
  for (int i = first + threadIdx.x; i < last; i += kArgmaxThreads) best = max(best, key_of(logits[i], i));
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) best = max(best, __shfl_xor_sync(~0u, best, lanes));
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const unsigned long long part : parts) best = max(best, part);
  atomicMax(p.best + row, best);
  if (draw_ticket(p.tickets + row) != gridDim.x - 1) return;
  best = atomicExch(p.best + row, 0ull);
  p.tickets[row] = 0;
  constexpr unsigned long long kMinusInfinity = 0x007FFFFFull;  // the order of -infinity
  p.out[row] = best == ~0ull || best >> 32 <= kMinusInfinity ? -1 : static_cast<int>(~static_cast<uint32_t>(best));
}

}  // namespace

Launch embed(const EmbedParams& p) {
  if ((p.table.bits && !linear_supported(p.table)) || p.table.paired || p.table.k < 1 || p.tokens < 1) return {};
  return {reinterpret_cast<const void*>(&embed_kernel),
          {static_cast<unsigned>(p.tokens), static_cast<unsigned>(ceil_div(p.table.k, kEmbedThreads)), 1},
          {kEmbedThreads, 1, 1},
          0};
}

Launch argmax(const ArgmaxParams& p) {
  if (p.rows < 1 || p.rows > kArgmaxMostRows || p.count < 1) return {};
  return {reinterpret_cast<const void*>(&argmax_kernel),
          {static_cast<unsigned>(ceil_div(p.count, kArgmaxBlock)), static_cast<unsigned>(p.rows), 1},
          {kArgmaxThreads, 1, 1},
          0};
}

}  // namespace tersor::kernels::cuda
