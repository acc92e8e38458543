// Into the packed layout (linear_layout.h), and from it to dense rows.
#include <cstring>

#include "kernels/cuda/linear_values.cuh"

namespace tersor::kernels::cuda {
namespace {

struct Place {
  int source, row;  // which weight of a pair, which of its rows
};
__host__ __device__ Place place_of(bool paired, int strip, int r) {
  constexpr int kHalf = kStripRows / 2;
  if (paired) return {r >= kHalf, strip * kHalf + r % kHalf};
  return {0, strip * kStripRows + r};
}

__host__ __device__ uint32_t code_at(const RepackParams& p, int strip, int r, int k) {
  const Place place = place_of(p.paired, strip, r);
  if (place.row >= p.rows || k >= p.k) return 0;
  const size_t bit = (static_cast<size_t>(place.row) * p.k + k) * p.bits;
  return (p.from[place.source].codes[bit / 32] >> (bit % 32)) & ((1u << p.bits) - 1);
}

__host__ __device__ uint32_t code_word(const RepackParams& p, int strip, int tile, int index) {
  const int unit = index / 128, lane = index / 4 % 32, word = index % 4, per_word = 32 / p.bits;
  uint32_t w = 0;
  for (int i = 0; i < per_word; ++i) {
    const CodePlace from = code_place(p.bits, unit, lane, word, i);
    w |= code_at(p, strip, from.row, tile * tile_k(p.bits) + from.k) << (p.bits * i);
  }
  return p.bits == 4 ? w << 3 | w >> 29 : w;
}

/// The bits of scale (or bias) `index` of a tile, widened to float if that is how they are stored.
__host__ __device__ uint32_t scale_bits(const RepackParams& p, int strip, int tile, int index) {
  const int groups = tile_k(p.bits) / p.group, r = index / (2 * groups), group = tile * groups + index / 2 % groups;
  const Place place = place_of(p.paired, strip, r);
  if (place.row >= p.rows || group >= p.k / p.group) return 0;
  const void* from = index % 2 ? p.from[place.source].biases : p.from[place.source].scales;
  const size_t at = static_cast<size_t>(place.row) * (p.k / p.group) + group;
  if (p.from_scale == Dtype::f32) return static_cast<const uint32_t*>(from)[at];
  const uint16_t half = static_cast<const uint16_t*>(from)[at];
  if (p.to_scale != Dtype::f32) return half;
  if (p.from_scale == Dtype::bf16) return static_cast<uint32_t>(half) << 16;
  __half_raw raw;
  raw.x = half;
  const float value = __half2float(__half(raw));
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

__host__ __device__ size_t tile_address(const RepackParams& p, int strip, int tile) {
  const int size = p.to_scale == Dtype::f32 ? 4 : 2;
  return (static_cast<size_t>(p.first_strip + strip) * tiles_of(p.bits, p.k) + tile) * tile_bytes(p.bits, p.group, size);
}

/// Item `item` of a tile: a word of codes, or after those a scale or bias.
__host__ __device__ void repack_item(const RepackParams& p, int strip, int tile, int item) {
  uint8_t* to = p.to + tile_address(p, strip, tile);
  constexpr int kWords = kCodeBytes / 4;
  if (item < kWords) {
    reinterpret_cast<uint32_t*>(to)[item] = code_word(p, strip, tile, item);
    return;
  }
  const uint32_t bits = scale_bits(p, strip, tile, item - kWords);
  if (p.to_scale == Dtype::f32)
    reinterpret_cast<uint32_t*>(to + kCodeBytes)[item - kWords] = bits;
  else
    reinterpret_cast<uint16_t*>(to + kCodeBytes)[item - kWords] = static_cast<uint16_t>(bits);
}

__host__ __device__ int items_of(const RepackParams& p) { return kCodeBytes / 4 + kStripRows * (tile_k(p.bits) / p.group) * 2; }

__global__ void repack_kernel(const __grid_constant__ RepackParams p) {
  const int items = items_of(p);
  for (int item = threadIdx.x; item < items; item += blockDim.x) repack_item(p, blockIdx.x, blockIdx.y, item);
}

/// One warp a tile and unit: fragments become rows by way of shared memory (rows of 144 bytes, so that no banks collide).
template <int BITS, class T>
__global__ void __launch_bounds__(256) dequantize_kernel(const __grid_constant__ DequantizeParams p) {
  constexpr int kUnitK = tile_k(BITS) / 4, kSteps = kUnitK / 16, kRowBytes = 144;
  __shared__ alignas(16) uint8_t shared[8][kStripRows * kRowBytes];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tiles = tiles_of(BITS, p.k), tile = blockIdx.x * 2 + (warp >> 2), unit = warp & 3, strip = blockIdx.y;
  if (tile >= tiles) return;
  const int size = p.scale_type == Dtype::f32 ? 4 : 2, groups = tile_k(BITS) / p.group;
  const uint8_t* from = p.packed + (static_cast<size_t>(p.first_strip + strip) * tiles + tile) * tile_bytes(BITS, p.group, size);
  const uint4 codes = *reinterpret_cast<const uint4*>(from + unit * kUnitBytes + lane * 16);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint8_t* mine = shared[warp];
  float scale[2], bias[2];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % 2 == 0) {  // groups are multiples of 32
      const int group = (unit * kUnitK + step * 16) / p.group;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = ((g + 8 * half) * groups + group) * 2;
        scale[half] = load_float(p.scale_type, from + kCodeBytes, at), bias[half] = load_float(p.scale_type, from + kCodeBytes, at + 1);
      }
    }
    uint32_t a[4];
    if constexpr (BITS == 4)
      whole_codes<4, T>(a, words[step], 0);
    else
      whole_codes<8, T>(a, words[2 * step], words[2 * step + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Pair<T> q = pair_of<Pair<T>>(a[i]);
      Pair<T> v;
      v.x = from_float<T>(fmaf(to_float(q.x), scale[i & 1], bias[i & 1]));
      v.y = from_float<T>(fmaf(to_float(q.y), scale[i & 1], bias[i & 1]));
      *reinterpret_cast<Pair<T>*>(mine + (g + 8 * (i & 1)) * kRowBytes + step * 32 + (i >> 1) * 16 + t * 4) = v;
    }
  }
  __syncwarp();
  constexpr int kChunks = kUnitK * 2 / 16;
  for (int i = lane; i < kStripRows * kChunks; i += 32) {
    const int r = i / kChunks, chunk = i % kChunks, k = tile * tile_k(BITS) + unit * kUnitK + chunk * 8;
    const Place place = place_of(p.paired, strip, r);
    if (place.row >= p.rows || k >= p.k) continue;
    T* to = static_cast<T*>(p.to) + (static_cast<size_t>(place.source) * p.rows + place.row) * p.k + k;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(mine + r * kRowBytes + chunk * 16);
  }
}

template <int BITS>
const void* dequantize_function(Dtype to) {
  if (to == Dtype::f16) return reinterpret_cast<const void*>(&dequantize_kernel<BITS, __half>);
  if (to == Dtype::bf16) return reinterpret_cast<const void*>(&dequantize_kernel<BITS, __nv_bfloat16>);
  return nullptr;
}

}  // namespace

bool linear_supported(const PackedLinear& w) {
  const bool group = w.group == 32 || w.group == 64 || w.group == 128;
  return (w.bits == 4 || w.bits == 8) && group && w.k > 0 && w.k % w.group == 0 && w.strips > 0;
}

size_t linear_packed_bytes(const PackedLinear& w) { return static_cast<size_t>(w.strips) * tiles_of(w.bits, w.k) * tile_bytes(w); }

Launch linear_repack(const PackedLinear& shape, const AffineRows& weight, const AffineRows& up, int rows, Dtype scale_type, int first_strip,
                     void* to, RepackParams* params) {
  if (!linear_supported(shape) || (shape.scale_type != scale_type && shape.scale_type != Dtype::f32)) return {};
  *params = {{weight, up}, static_cast<uint8_t*>(to), rows, shape.bits, shape.group, shape.k, first_strip, shape.paired,
             scale_type,   shape.scale_type};
  const unsigned strips = static_cast<unsigned>(linear_strips(rows, shape.paired));
  const unsigned tiles = static_cast<unsigned>(tiles_of(shape.bits, shape.k));
  return {reinterpret_cast<const void*>(&repack_kernel), {strips, tiles, 1}, {256, 1, 1}, 0};
}

void linear_repack_reference(const RepackParams& p, int strips) {
  const int tiles = tiles_of(p.bits, p.k), items = items_of(p);
  for (int strip = 0; strip < strips; ++strip)
    for (int tile = 0; tile < tiles; ++tile)
      for (int item = 0; item < items; ++item) repack_item(p, strip, tile, item);
}

Launch linear_dequantize(const PackedLinear& w, const void* packed, int first_strip, int rows, Dtype to_type, void* to,
                         DequantizeParams* params) {
  if (!linear_supported(w)) return {};
  const int strips = linear_strips(rows, w.paired);
  *params = {static_cast<const uint8_t*>(packed), to, w.bits, w.group, w.k, rows, first_strip, strips, w.paired, w.scale_type, to_type};
  const void* function = w.bits == 4 ? dequantize_function<4>(to_type) : dequantize_function<8>(to_type);
  const unsigned pairs = static_cast<unsigned>(ceil_div(tiles_of(w.bits, w.k), 2));
  return {function, {pairs, static_cast<unsigned>(strips), 1}, {256, 1, 1}, 0};
}

}  // namespace tersor::kernels::cuda
