// The end of the attention kernel: the warps of a block, then the blocks of a head.
#pragma once

#include "kernels/cuda/kv_attend_tile.cuh"
#include "kernels/cuda/kv_rotate.cuh"

namespace tersor::kernels::cuda {

/// Partial results of a unit (a KV head and a set of vectors): of each split outputs [4 NT][D], then (maximum, sum) [4 NT].
template <int D, int NT>
struct Partials {
  static constexpr int kOut = 4 * NT * D, kFloats = kOut + 8 * NT;
  float* base;
  __device__ Partials(const AttendParams& p, int unit) : base(p.partials + static_cast<size_t>(unit) * p.splits * kFloats) {}
  __device__ float* out(int split) const { return base + static_cast<size_t>(split) * kFloats; }
  __device__ float2* ends(int split) const { return reinterpret_cast<float2*>(out(split) + kOut); }
};

/// Running sum of outputs whose maxima differ.
struct Weighted {
  float top = kNothing, total = 0;
  float4 out = {0, 0, 0, 0};
  __device__ __forceinline__ void rescale(float to) {
    const float shrink = exp2_fast(top - to);
    top = to, total *= shrink, out.x *= shrink, out.y *= shrink, out.z *= shrink, out.w *= shrink;
  }
  __device__ __forceinline__ void add(float4 x, float2 end) {
    const float weight = exp2_fast(end.x - top);
    total = fmaf(weight, end.y, total);
    out.x = fmaf(weight, x.x, out.x), out.y = fmaf(weight, x.y, out.y), out.z = fmaf(weight, x.z, out.z), out.w = fmaf(weight, x.w, out.w);
  }
};

/// All splits of four outputs; those that `lanes` groups of threads share are read in turns.
template <class S>
__device__ __forceinline__ Weighted merge_splits(const AttendParams& p, const Partials<S::D, S::NT>& partials, int quad, int begin,
                                                 int step) {
  constexpr int kAtOnce = 8, kQuads = S::D / 4;
  Weighted sum;
  for (int s0 = begin; s0 < p.splits; s0 += kAtOnce * step) {
    float4 x[kAtOnce];
    float2 e[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int s = s0 + k * step;
      x[k] = {0, 0, 0, 0}, e[k] = {kNothing, 0};
      if (s < p.splits) {
        e[k] = __ldcg(partials.ends(s) + quad / kQuads);
        x[k] = __ldcg(reinterpret_cast<const float4*>(partials.out(s)) + quad);
      }
    }
    float top = sum.top;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) top = fmaxf(top, e[k].x);
    sum.rescale(top);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum.add(x[k], e[k]);
  }
  return sum;
}

/// Learned sink: one more column of the softmax, without a value.
__device__ __forceinline__ float normaliser(const AttendView& view, int vector, float top, float total) {
  if (view.p.sinks == nullptr) return total > 0 ? 1 / total : 0.0f;
  const float sink =
      view.p.sinks[min(view.kv_head * view.p.group + vector - view.row(vector) * view.p.group, view.p.kv_heads * view.p.group - 1)] *
      1.44269504f;
  // Outputs are relative to `top`: a sink far above it makes them vanish.
  const float most = fmaxf(top, sink), sum = total * exp2_fast(top - most) + exp2_fast(sink - most);
  return exp2_fast(top - most) / sum;
}

/// Merged, normalised outputs of a vector from shared memory to their place.
template <class S>
__device__ __forceinline__ void write_vector(const AttendView& view, int vector, const float* row, float* scratch, int lane) {
  using W = WarpVector<S::D>;
  const AttendParams& p = view.p;
  const int of_all = view.vector0 + vector, token = view.row(of_all);
  if (token >= p.rows) return;  // the whole warp
  float v[W::kEach];
#pragma unroll
  for (int j = 0; j < W::kEach; ++j) v[j] = W::inside(lane, j) ? row[W::index(lane, j)] : 0.0f;
  rotate_back<S::D>(v, p.value_rotation, lane, scratch);
  const long long at = view.batch * p.out_batch_stride + (view.kv_head * p.group + of_all - token * p.group) * p.out_head_stride +
                       token * p.out_token_stride;
#pragma unroll
  for (int j = 0; j < W::kEach; ++j)
    if (W::inside(lane, j)) store_number(p.out, p.queries.type, at + W::index(lane, j), v[j]);
}

/// Every block calls it with its warps' states; `memory` is the ring.
template <class S>
__device__ __forceinline__ void merge(const AttendView& view, int split, AttendState<S::D, S::NT, S::V>& state, uint8_t* memory,
                                      float* scratch) {
  constexpr int D = S::D, NT = S::NT, kVectors = 4 * NT, kThreads = S::kWarps * 32, kQuads = kVectors * D / 4;
  const AttendParams& p = view.p;
  __shared__ float2 ends[S::kWarps][kVectors];
  __shared__ bool last;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int unit = blockIdx.z * gridDim.y + blockIdx.y;
  const Partials<D, NT> partials(p, unit);
  float* const own = reinterpret_cast<float*>(memory + warp * S::kStages * S::kStage);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const float total = sum_over_rows(state.total[n]);
    if (g == 0) ends[warp][4 * n + t] = {state.top[n], total};
#pragma unroll
    for (int b = 0; b < D / 16; ++b) {
      float* const to = own + (4 * n + t) * D + b * 16 + g;
      to[0] = state.out[n][b][0], to[8] = state.out[n][b][1];
    }
  }
  __syncthreads();
  for (int quad = threadIdx.x; quad < kQuads; quad += kThreads) {
    const int vector = quad / (D / 4);
    Weighted sum;
    float top = kNothing;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) top = fmaxf(top, ends[w][vector].x);
    sum.top = top;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w)
      sum.add(reinterpret_cast<const float4*>(memory + w * S::kStages * S::kStage)[quad], ends[w][vector]);
    reinterpret_cast<float4*>(partials.out(split))[quad] = sum.out;
    if (quad % (D / 4) == 0) partials.ends(split)[vector] = {sum.top, sum.total};
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    last = take_ticket(p.tickets + unit) == static_cast<unsigned>(p.splits) - 1;
    if (last) p.tickets[unit] = 0;
    if (p.done != nullptr && unit == 0) *p.done = 1;
  }
  __syncthreads();
  if (!last) return;

  // Threads left over after one for every four outputs take a part of the splits each.
  constexpr int kTurns = kThreads / kQuads > 0 ? kThreads / kQuads : 1;
  float4* const shares = reinterpret_cast<float4*>(memory);
  float2* const share_ends = reinterpret_cast<float2*>(memory + kTurns * kQuads * sizeof(float4));
  float* const rows = reinterpret_cast<float*>(share_ends + kTurns * kQuads);
  for (int i = threadIdx.x; i < kTurns * kQuads; i += kThreads) {
    const Weighted sum = merge_splits<S>(p, partials, i % kQuads, i / kQuads, kTurns);
    shares[i] = sum.out, share_ends[i] = {sum.top, sum.total};
  }
  __syncthreads();
  for (int quad = threadIdx.x; quad < kQuads; quad += kThreads) {
    Weighted sum;
    float top = kNothing;
#pragma unroll
    for (int k = 0; k < kTurns; ++k) top = fmaxf(top, share_ends[k * kQuads + quad].x);
    sum.top = top;
#pragma unroll
    for (int k = 0; k < kTurns; ++k) sum.add(shares[k * kQuads + quad], share_ends[k * kQuads + quad]);
    const float factor = normaliser(view, view.vector0 + quad / (D / 4), sum.top, sum.total);
    reinterpret_cast<float4*>(rows)[quad] = {sum.out.x * factor, sum.out.y * factor, sum.out.z * factor, sum.out.w * factor};
  }
  __syncthreads();
  for (int vector = warp; vector < kVectors; vector += S::kWarps)
    write_vector<S>(view, vector, rows + vector * D, scratch + warp * D, lane);
}

}  // namespace tersor::kernels::cuda
