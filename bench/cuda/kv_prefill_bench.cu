// Times attention of many rows over a cache: graph replay, medians. One JSON line a measurement; `full` caches hold random bits as numbers.
#include <cmath>
#include <cstring>

#include "kernels/cuda/kv_prefill.h"
#include "kv_device.cuh"

namespace tersor::kernels::cuda {
namespace {

struct Shape {
  int kv_heads, group, dim, tokens, rows;
};

// Random bits as numbers between 1/4 and 2, so that they are none that is infinite.
__global__ void make_numbers(uint16_t* numbers, size_t count, bool half) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    numbers[i] = half ? (numbers[i] & 0x8fff) | 0x3000 : (numbers[i] & 0x80ff) | 0x3f00;
}

void bench(const std::string& name, const Shape& s, Number type, bool few) {
  const Sides sides(name, s.dim);
  fill_pool(sides, s.dim);
  if (sides.full()) make_numbers<<<132 * 8, 256>>>(reinterpret_cast<uint16_t*>(pool), kPool / 2, type == Number::f16);
  PrefillParams params;
  AttendParams& p = params.attend;
  const int heads = s.kv_heads * s.group, tile_tokens = sides.tile_tokens();
  const size_t numbers = static_cast<size_t>(s.rows) * heads * s.dim;
  void *q, *out, *partials, *tickets;
  check(cudaMalloc(&q, numbers * 2), "q"), check(cudaMalloc(&out, numbers * 2), "out");
  std::vector<uint16_t> host(numbers);
  for (size_t i = 0; i < numbers; ++i) {
    const float x = std::sin(static_cast<float>(i) * 12.9898f) * 1.4f;
    host[i] = type == Number::f16 ? float_to_half(x) : float_to_bfloat(x);
  }
  check(cudaMemcpy(q, host.data(), numbers * 2, cudaMemcpyHostToDevice), "q");
  p.queries = {q, static_cast<int64_t>(numbers), s.dim, static_cast<int64_t>(heads) * s.dim, 1, type};
  p.out = out, p.out_batch_stride = p.queries.batch_stride, p.out_head_stride = s.dim, p.out_token_stride = p.queries.token_stride;
  p.key_rotation = rotation_bits(sides.keys->rotation()), p.value_rotation = rotation_bits(sides.values->rotation());
  p.key_levels = levels_of(*sides.keys), p.value_levels = levels_of(*sides.values), p.full_type = type;
  p.scale = 1 / std::sqrt(static_cast<float>(s.dim)), p.batch = 1, p.kv_heads = s.kv_heads, p.group = s.group, p.rows = s.rows;
  p.position = s.tokens - s.rows;
  p.segment_count = 1;
  AttendSegment& g = p.segments[0];
  g.tiles = pool, g.head_stride = static_cast<size_t>((s.tokens + tile_tokens - 1) / tile_tokens) * sides.tile_bytes;
  g.batch_stride = g.head_stride * s.kv_heads, g.end = s.tokens;
  g.lo_abs = g.lo_rel = g.hi_rel = -(1 << 29), g.hi_abs = 1 << 29, g.full = sides.full();
  const size_t most = size_t{2} << 30;
  check(cudaMalloc(&partials, most), "partials"), check(cudaMalloc(&tickets, 1 << 20), "tickets"),
      check(cudaMemset(tickets, 0, 1 << 20), "tickets");
  p.partials = static_cast<float*>(partials), p.tickets = static_cast<unsigned*>(tickets);
  double us = 0;
  const char* kernel = few ? "few rows" : "many rows";
  if (few) {
    const AttendPlan plan = attend_plan(p, sides.key_code, sides.value_code, s.dim, 132);
    if (plan.partial_floats * 4 > most || plan.launch.grid.y > 65535u) return;
    allow_shared(plan.launch);
    us = time_us([&](int, cudaStream_t stream) { launch_now(plan.launch, p, stream); }, 4, 10);
  } else {
    const Launch l = prefill_any(params, sides.key_code, sides.value_code, s.dim);
    if (l.function == nullptr) return;
    allow_shared(l);
    us = time_us([&](int, cudaStream_t stream) { launch_now(l, params, stream); }, 4, 20);
  }
  const double pairs = static_cast<double>(heads) * s.rows * (s.tokens - s.rows + (s.rows + 1) / 2.0);
  std::printf(
      "{\"bench\": \"prefill attend\", \"kernel\": \"%s\", \"codec\": \"%s\", \"type\": \"%s\", \"kv_heads\": %d, \"group\": %d, \"dim\": "
      "%d, \"tokens\": %d, \"rows\": %d, \"us\": %.1f, \"tf_s\": %.1f}\n",
      kernel, name.c_str(), type == Number::f16 ? "f16" : "bf16", s.kv_heads, s.group, s.dim, s.tokens, s.rows, us,
      4e-6 * pairs * s.dim / us);
  std::fflush(stdout);
  cudaFree(q), cudaFree(out), cudaFree(partials), cudaFree(tickets);
}

void run() {
  const Shape llama{8, 4, 128, 8192, 2048};
  for (const char* name : {"turboquant:4", "turboquant:6/turboquant:4", "turboquant:6", "turboquant:5", "turboquant:3", "turboquant:2",
                           "affine:4", "affine:8"})
    bench(name, llama, Number::bf16, false);
  for (const Number type : {Number::f16, Number::bf16}) bench("full", llama, type, false);
  for (const char* name : {"turboquant:4", "full"})
    for (const Shape& s : {Shape{8, 4, 128, 2048, 2048},
                           {8, 4, 128, 8192, 8192},
                           {8, 4, 128, 32768, 2048},
                           {8, 4, 64, 8192, 2048},
                           {8, 4, 96, 8192, 2048},
                           {8, 4, 80, 8192, 2048}})
      bench(name, s, Number::bf16, false);
  // Where the kernel for few rows ends.
  for (const int tokens : {2048, 32768})
    for (const int rows : {16, 32, 64, 128, 256, 512})
      for (const bool few : {true, false}) bench("turboquant:4", {8, 4, 128, tokens, rows}, Number::bf16, few);
}

}  // namespace
}  // namespace tersor::kernels::cuda

int main() {
  using namespace tersor::kernels::cuda;
  check(cudaMalloc(&pool, kPool + (1 << 20)), "pool");
  run();
  return 0;
}
