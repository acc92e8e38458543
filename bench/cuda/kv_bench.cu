// Times the cache kernels: graph replay, every launch of a graph on other memory (cold L2), medians. One JSON line a measurement.
//   kv_bench            the published shapes
//   kv_bench sweep      also other splits and block sizes of each
//   kv_bench short      other splits of short caches
//   kv_bench wide       codes of 5 and 6 bits beside others
#include <cmath>
#include <cstring>

#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_attend_variants.h"
#include "kv_device.cuh"

namespace tersor::kernels::cuda {
namespace {

__global__ void __launch_bounds__(512) read_all(const uint4* from, size_t count, uint32_t* to) {
  uint32_t sum = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += 4 * step) {
    uint4 v[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < count) v[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345) *to = sum;
}

struct Shape {
  int batch, kv_heads, group, dim, tokens, rows = 1;
};

void bench_attend(const std::string& name, const Shape& s, bool sweep) {
  const Sides sides(name, s.dim);
  const size_t tiles = static_cast<size_t>(s.batch) * s.kv_heads * (s.tokens / sides.tile_tokens()), bytes = tiles * sides.tile_bytes;
  const size_t sets = std::max<size_t>(1, kPool / bytes);
  fill_pool(sides, s.dim);
  AttendParams p;
  const int heads = s.kv_heads * s.group;
  const size_t numbers = static_cast<size_t>(s.batch) * s.rows * heads * s.dim;
  void *q, *out, *partials, *tickets;
  check(cudaMalloc(&q, numbers * 2), "q"), check(cudaMalloc(&out, numbers * 2), "out");
  std::vector<uint16_t> host(numbers);
  for (size_t i = 0; i < numbers; ++i) host[i] = float_to_half(std::sin(static_cast<float>(i) * 12.9898f) * 1.4f);
  check(cudaMemcpy(q, host.data(), numbers * 2, cudaMemcpyHostToDevice), "q");
  p.queries = {q, static_cast<int64_t>(s.rows) * heads * s.dim, s.dim, static_cast<int64_t>(heads) * s.dim, 1, Number::f16};
  p.out = out, p.out_batch_stride = p.queries.batch_stride, p.out_head_stride = s.dim, p.out_token_stride = p.queries.token_stride;
  p.key_rotation = rotation_bits(sides.keys->rotation()), p.value_rotation = rotation_bits(sides.values->rotation());
  p.key_levels = levels_of(*sides.keys), p.value_levels = levels_of(*sides.values);
  p.scale = 1 / std::sqrt(static_cast<float>(s.dim)), p.batch = s.batch, p.kv_heads = s.kv_heads, p.group = s.group, p.rows = s.rows;
  p.position = s.tokens - s.rows;
  p.segment_count = 1;
  AttendSegment& g = p.segments[0];
  g.head_stride = bytes / s.batch / s.kv_heads, g.batch_stride = g.head_stride * s.kv_heads, g.end = s.tokens;
  g.lo_abs = g.lo_rel = g.hi_rel = -(1 << 29), g.hi_abs = 1 << 29, g.full = sides.full();
  const size_t most = size_t{256} << 20;
  check(cudaMalloc(&partials, most), "partials"), check(cudaMalloc(&tickets, 1 << 20), "tickets"),
      check(cudaMemset(tickets, 0, 1 << 20), "tickets");
  p.partials = static_cast<float*>(partials), p.tickets = static_cast<unsigned*>(tickets);
  const AttendPlan plan = attend_plan(p, sides.key_code, sides.value_code, s.dim, 132);
  const int count = static_cast<int>(std::max<size_t>(s.batch > 1 ? 8 : 32, std::min<size_t>(sets, 64)));
  const double read = time_us(
      [&](int i, cudaStream_t stream) {
        read_all<<<132 * 4, 512, 0, stream>>>(reinterpret_cast<const uint4*>(pool + i % sets * bytes), bytes / 16,
                                              static_cast<uint32_t*>(tickets) + 1000);
      },
      count);
  const auto measure = [&](const Launch& l, const AttendParams& params, const char* what) {
    allow_shared(l);
    const double us = time_us(
        [&](int i, cudaStream_t stream) {
          AttendParams mine = params;
          mine.segments[0].tiles = pool + i % sets * bytes;
          launch_now(l, mine, stream);
        },
        count);
    std::printf(
        "{\"bench\": \"attend\", \"what\": \"%s\", \"codec\": \"%s\", \"batch\": %d, \"kv_heads\": %d, \"group\": %d, \"dim\": %d, "
        "\"tokens\": %d, \"rows\": %d, "
        "\"warps\": %u, \"splits\": %d, \"us\": %.2f, \"tb_s\": %.2f, \"read_us\": %.2f}\n",
        what, name.c_str(), s.batch, s.kv_heads, s.group, s.dim, s.tokens, s.rows, l.block.x / 32, params.splits, us,
        static_cast<double>(bytes) / us / 1e6, read);
    std::fflush(stdout);
  };
  measure(plan.launch, p, "plan");
  if (s.tokens <= 4096 && s.batch == 1 && s.dim == 128 && sweep) {
    for (const int splits : {1, 2, 4, 8, 16}) {
      AttendParams params = p;
      AttendPlan other;
      attend_split(params, other, attend_variant_128(sides.key_code, sides.value_code, {s.group * s.rows > 4, false, false}), s.dim,
                   splits);
      measure(other.launch, params, "sweep");
    }
  } else if (sweep && s.dim != 80 && s.dim != 96) {
    for (const AttendUse& use : {AttendUse{false, false, false}, AttendUse{false, true, false}, AttendUse{false, false, true}}) {
      AttendUse wanted = use;
      wanted.wide = s.group * s.rows > 4;
      const AttendVariant v = s.dim == 128  ? attend_variant_128(sides.key_code, sides.value_code, wanted)
                              : s.dim == 64 ? attend_variant_64(sides.key_code, sides.value_code, wanted)
                                            : attend_variant_256(sides.key_code, sides.value_code, wanted);
      if (wanted.long_shares && v.warps != 16) continue;
      if (wanted.many_blocks && (s.dim != 128 || v.resident != 2)) continue;
      const int units = s.batch * s.kv_heads * ((s.group * s.rows + 4 * v.sets - 1) / (4 * v.sets));
      std::vector<int> tried;
      for (const int blocks : {132, 264}) {
        const int splits = std::max(1, blocks / units);
        if (std::count(tried.begin(), tried.end(), splits) || splits > 64) continue;
        tried.push_back(splits);
        AttendParams params = p;
        AttendPlan other;
        attend_split(params, other, v, s.dim, splits);
        measure(other.launch, params, "sweep");
      }
    }
  }
  cudaFree(q), cudaFree(out), cudaFree(partials), cudaFree(tickets);
}

void bench_append(const std::string& name, int batch, int kv_heads, int dim, int count, int at) {
  const Sides sides(name, dim);
  AppendParams p;
  const size_t numbers = static_cast<size_t>(batch) * count * kv_heads * dim;
  for (int i = 0; i < 2; ++i)
    p.rows[i] = {pool + (size_t{7} << 30) + i * numbers * 2,
                 static_cast<int64_t>(count) * kv_heads * dim,
                 dim,
                 static_cast<int64_t>(kv_heads) * dim,
                 1,
                 Number::f16};
  p.rotations[0] = rotation_bits(sides.keys->rotation()), p.rotations[1] = rotation_bits(sides.values->rotation());
  p.levels[0] = levels_of(*sides.keys), p.levels[1] = levels_of(*sides.values);
  p.heads = kv_heads, p.jobs = 2;
  const int tile_tokens = sides.tile_tokens();
  const size_t head = static_cast<size_t>((at + count + tile_tokens - 1) / tile_tokens) * sides.tile_bytes, slab = head * kv_heads * batch;
  for (int i = 0; i < 2; ++i) {
    AppendJob& j = p.job[i];
    j.tile_bytes = sides.tile_bytes, j.side_offset = i * sides.key_bytes, j.head_stride = head, j.batch_stride = head * kv_heads, j.at = at,
    j.count = count, j.code = i == 0 ? sides.key_code : sides.value_code, j.keys = i == 0;
  }
  const Launch l = append_plan(p, dim, batch);
  const size_t sets = std::max<size_t>(1, (size_t{6} << 30) / slab);
  const double us = time_us(
      [&](int i, cudaStream_t stream) {
        AppendParams mine = p;
        for (int k = 0; k < 2; ++k) mine.job[k].tiles = pool + i % sets * slab;
        launch_now(l, mine, stream);
      },
      64);
  const double moved = 2.0 * numbers * 2 + static_cast<double>(batch) * kv_heads * count * sides.tile_bytes / tile_tokens;
  std::printf(
      "{\"bench\": \"append\", \"codec\": \"%s\", \"batch\": %d, \"kv_heads\": %d, \"dim\": %d, \"tokens\": %d, \"us\": %.2f, \"tb_s\": "
      "%.3f}\n",
      name.c_str(), batch, kv_heads, dim, count, us, moved / us / 1e6);
  std::fflush(stdout);
}

void run_short() {
  for (const char* name : {"full", "turboquant:4", "turboquant:6/turboquant:4"})
    for (const int tokens : {512, 1024, 2048, 4096}) bench_attend(name, {1, 8, 4, 128, tokens}, true);
  bench_append("turboquant:4", 1, 8, 128, 1, 1023);
  bench_append("full", 1, 8, 128, 1, 1023);
}

void run_wide() {
  for (const char* name : {"turboquant:6/turboquant:4", "turboquant:4", "turboquant:6", "turboquant:5", "full"})
    for (const Shape& s :
         {Shape{1, 8, 4, 128, 2048}, {1, 8, 4, 128, 8192}, {1, 8, 4, 128, 32768}, {1, 8, 4, 128, 131072}, {8, 8, 4, 128, 131072}})
      bench_attend(name, s, false);
  for (const Shape& s : {Shape{64, 8, 4, 128, 4096}, {1, 4, 3, 256, 32768}, {8, 8, 4, 64, 131072}, {8, 8, 8, 128, 131072}})
    bench_attend("turboquant:6/turboquant:4", s, false);
  for (const char* name : {"turboquant:6/turboquant:4", "turboquant:4"}) {
    bench_append(name, 1, 8, 128, 1, 8191);
    bench_append(name, 1, 8, 128, 8192, 0);
  }
}

void run(bool sweep) {
  for (const char* name : {"turboquant:4", "turboquant:3", "turboquant:2", "turboquant:1", "affine:4", "affine:8", "full",
                           "turboquant:6/turboquant:4", "turboquant:6", "turboquant:5"})
    for (const Shape& s :
         {Shape{1, 8, 4, 128, 2048}, {1, 8, 4, 128, 8192}, {1, 8, 4, 128, 32768}, {1, 8, 4, 128, 131072}, {8, 8, 4, 128, 131072}})
      bench_attend(name, s, sweep && (!std::strcmp(name, "turboquant:4") || !std::strcmp(name, "turboquant:2")));
  for (const Shape& s : {Shape{64, 8, 4, 128, 4096},
                         {1, 8, 4, 128, 1048576},
                         {1, 4, 3, 256, 32768},
                         {8, 8, 4, 64, 131072},
                         {1, 3, 3, 64, 8192},
                         {8, 8, 8, 128, 131072},
                         {1, 8, 8, 128, 131072},
                         {1, 8, 4, 128, 131072, 4},
                         {1, 8, 4, 96, 131072},
                         {1, 8, 4, 80, 131072}})
    bench_attend("turboquant:4", s, sweep);
  for (const char* name : {"turboquant:4", "turboquant:2", "turboquant:6/turboquant:4", "affine:4", "full"}) {
    bench_append(name, 1, 8, 128, 1, 8191);
    bench_append(name, 8, 8, 128, 1, 8191);
    bench_append(name, 1, 8, 128, 8192, 0);
    bench_append(name, 1, 8, 128, 512, 1000);
  }
}

}  // namespace
}  // namespace tersor::kernels::cuda

int main(int argc, char** argv) {
  using namespace tersor::kernels::cuda;
  check(cudaMalloc(&pool, kPool + (1 << 20)), "pool");
  if (argc > 1 && !std::strcmp(argv[1], "short"))
    run_short();
  else if (argc > 1 && !std::strcmp(argv[1], "wide"))
    run_wide();
  else
    run(argc > 1 && !std::strcmp(argv[1], "sweep"));
  return 0;
}
