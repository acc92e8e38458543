// Speed of the linear kernels: JSON lines, one a problem. Medians over graph replays; the replays go round several copies of the
// weights, more than the second cache holds; "of_read" compares with a plain streaming read of as many bytes in the same process.
//   linear_bench [suite ...]     suites: rows, tiles, dequantize, dense, norm, plans, tile_plans
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "kernels/cuda/norm_rope.h"
#include "linear_device.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr size_t kColdBytes = 260u << 20;
constexpr int kReplays = 25;

__global__ void fill_kernel(uint32_t* to, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + seed;
    v ^= v >> 15, v *= 0x85ebca6bu, v ^= v >> 13, v *= 0xc2b2ae35u;
    to[i] = v ^ (v >> 16);
  }
}
/// Roughly normal numbers of a 16-bit type, times `scale`, plus `offset`.
__global__ void fill_numbers_kernel(uint16_t* to, size_t n, uint32_t seed, float scale, float offset, bool half) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u + seed;
    v ^= v >> 15, v *= 0x85ebca6bu, v ^= v >> 13, v *= 0xc2b2ae35u, v ^= v >> 16;
    const float sum =
        static_cast<float>(v & 255) + static_cast<float>(v >> 8 & 255) + static_cast<float>(v >> 16 & 255) + static_cast<float>(v >> 24);
    const float x = (sum - 510.f) / 148.f * scale + offset;
    if (half)
      reinterpret_cast<__half*>(to)[i] = __float2half_rn(x);
    else
      reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x);
  }
}
__global__ void __launch_bounds__(512) read_kernel(const uint4* from, size_t n, uint32_t* to) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  uint32_t a = 0;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = i + j * step < n ? __ldcs(from + i + j * step) : uint4{};
#pragma unroll
    for (int j = 0; j < 4; ++j) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (a == 0x12345) *to = a;
}

void fill(const Buffer& b, uint32_t seed) { fill_kernel<<<1024, 256>>>(static_cast<uint32_t*>(b.get()), b.size() / 4, seed); }
void fill_numbers(const Buffer& b, uint32_t seed, float scale, float offset, Dtype type) {
  fill_numbers_kernel<<<1024, 256>>>(static_cast<uint16_t*>(b.get()), b.size() / 2, seed, scale, offset, type == Dtype::f16);
}

/// Microseconds of one call: median over replays of a graph of `calls` calls in a row (call i gets i), over their number.
double time_calls(int calls, const std::function<void(int, cudaStream_t)>& call) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  check(cudaStreamCreate(&stream), "stream"), check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture"), check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  std::vector<float> times;
  for (int r = 0; r < kReplays + 3; ++r) {
    check(cudaEventRecord(begin, stream), "event"), check(cudaGraphLaunch(exec, stream), "replay"),
        check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (r >= 3) times.push_back(ms * 1e3f / static_cast<float>(calls));
  }
  check(cudaGraphExecDestroy(exec), "graph"), check(cudaGraphDestroy(graph), "graph"), check(cudaStreamDestroy(stream), "stream");
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  return times[kReplays / 2];
}

double read_time(size_t bytes) {
  const int calls = static_cast<int>(std::max<size_t>(2, (kColdBytes + bytes - 1) / bytes));
  const Buffer pool(bytes * calls + 16), out(16);
  fill(pool, 1);
  return time_calls(calls, [&](int i, cudaStream_t s) {
    read_kernel<<<264, 512, 0, s>>>(reinterpret_cast<const uint4*>(pool.bytes() + i * (bytes / 16 * 16)), bytes / 16,
                                    static_cast<uint32_t*>(out.get()));
  });
}

/// A problem with several copies of its weight.
struct Problem {
  int columns, k, bits, group, rows;
  Dtype type;
  bool paired = false;
  int copies;
  std::vector<Buffer> packed;
  Buffer x, y;

  Problem(int columns_, int k_, int bits_, int group_, int rows_, Dtype type_, bool paired_ = false)
      : columns(columns_),
        k(k_),
        bits(bits_),
        group(group_),
        rows(rows_),
        type(type_),
        paired(paired_),
        x(static_cast<size_t>(rows_) * k_ * 2),
        y(static_cast<size_t>(rows_) * columns_ * 2) {
    copies = static_cast<int>(std::max<size_t>(2, (kColdBytes + bytes() - 1) / bytes()));
    if (rows > 256) copies = 2;
    fill_numbers(x, 3, 1, 0, type);
    const Buffer codes(static_cast<size_t>(columns) * k * bits / 8 * (paired ? 2 : 1));
    const Buffer scales(static_cast<size_t>(columns) * k / group * 2), biases(scales.size());
    const float step = 0.3f / static_cast<float>(1 << bits);
    for (int i = 0; i < copies; ++i) {
      fill(codes, i), fill_numbers(scales, i, step / 4, step, type),
          fill_numbers(biases, i, step / 4, -step * static_cast<float>(1 << (bits - 1)), type);
      packed.emplace_back(bytes());
      RepackParams params;
      const AffineRows rows_of = {static_cast<const uint32_t*>(codes.get()), scales.get(), biases.get()};
      launch(linear_repack(shape(), rows_of, rows_of, columns, type, 0, packed.back().get(), &params), params);
    }
    check(cudaDeviceSynchronize(), "repack");
  }
  PackedLinear shape() const { return {bits, group, type, k, linear_strips(columns, paired), paired}; }
  size_t bytes() const { return linear_packed_bytes(shape()); }
  LinearProblem problem(int copy) const {
    LinearProblem p;
    p.weight = shape(), p.packed = packed[copy].get(), p.x = x.get(), p.x_stride = k, p.x_type = p.y_type = type, p.rows = rows;
    p.outputs[0].y = y.get(), p.outputs[0].stride = columns, p.outputs[0].columns = columns, p.output_count = 1;
    return p;
  }
};

template <class Plan, class Params>
double time_problem(const Problem& p, const Plan& plan, size_t (*workspace_bytes)(const LinearProblem&, Plan),
                    Launch (*describe)(const LinearProblem&, Params*, Plan)) {
  const Buffer workspace(workspace_bytes(p.problem(0), plan) + 16);
  return time_calls(p.copies, [&](int i, cudaStream_t s) {
    LinearProblem problem = p.problem(i);
    problem.workspace = workspace.get();
    Params params;
    launch(describe(problem, &params, plan), params, s);
  });
}

void rows_line(const Problem& p, const LinearRowsPlan& plan, double read) {
  const double us = time_problem<LinearRowsPlan, LinearRowsParams>(p, plan, linear_rows_workspace, linear_rows);
  std::printf(
      "{\"kernel\":\"linear_rows\",\"out\":%d,\"in\":%d,\"bits\":%d,\"group\":%d,\"type\":\"%s\",\"paired\":%d,\"rows\":%d,\"strips\":%d,"
      "\"splits\":%d,\"row_warps\":%d,\"stages\":%d,\"us\":%.2f,\"tb_s\":%.2f,\"of_read\":%.2f}\n",
      p.columns, p.k, p.bits, p.group, p.type == Dtype::f16 ? "f16" : "bf16", p.paired, p.rows, plan.strips, plan.splits, plan.row_warps,
      plan.stages, us, p.bytes() / us / 1e6, read / us);
  std::fflush(stdout);
}

void tiles_line(const Problem& p, const LinearTilesPlan& plan) {
  const double us = time_problem<LinearTilesPlan, LinearTilesParams>(p, plan, linear_tiles_workspace, linear_tiles);
  std::printf(
      "{\"kernel\":\"linear_tiles\",\"out\":%d,\"in\":%d,\"bits\":%d,\"group\":%d,\"type\":\"%s\",\"paired\":%d,\"rows\":%d,\"blocks\":%d,"
      "\"columns\":%d,\"splits\":%d,\"us\":%.2f,\"tf_s\":%.1f}\n",
      p.columns, p.k, p.bits, p.group, p.type == Dtype::f16 ? "f16" : "bf16", p.paired, p.rows, plan.blocks, plan.columns, plan.splits, us,
      2.0 * p.rows * p.columns * (p.paired ? 2 : 1) * p.k / us / 1e6);
  std::fflush(stdout);
}

void rows_suite() {
  constexpr int kShapes[][2] = {{4096, 14336}, {14336, 4096}, {4096, 4096}, {6144, 4096}, {128256, 4096}, {2048, 2048}, {1024, 4096}};
  for (const int bits : {4, 8})
    for (const auto& [columns, k] : kShapes) {
      double read = 0;
      for (const int rows : {1, 4, 8, 16}) {
        const Problem p(columns, k, bits, 64, rows, Dtype::bf16);
        if (read == 0) read = read_time(p.bytes());
        rows_line(p, linear_rows_plan(p.problem(0)), read);
      }
    }
  const Problem pair(14336, 4096, 4, 64, 1, Dtype::bf16, true);
  rows_line(pair, linear_rows_plan(pair.problem(0)), read_time(pair.bytes()));
  for (const int group : {32, 128}) {
    const Problem p(4096, 14336, 4, group, 1, Dtype::f16);
    rows_line(p, linear_rows_plan(p.problem(0)), read_time(p.bytes()));
  }
}

void plans_suite() {
  struct Shape {
    int columns, k, bits, rows;
  };
  for (const Shape& s : {Shape{4096, 14336, 4, 1},
                         {14336, 4096, 4, 1},
                         {4096, 14336, 4, 16},
                         {14336, 4096, 4, 16},
                         {4096, 4096, 4, 1},
                         {6144, 4096, 4, 1},
                         {4096, 14336, 8, 1},
                         {4096, 14336, 4, 4},
                         {14336, 4096, 4, 4}}) {
    const Problem p(s.columns, s.k, s.bits, 64, s.rows, Dtype::bf16);
    const double read = read_time(p.bytes());
    const LinearProblem problem = p.problem(0);
    for (const int splits : {1, 2, 4, 8})
      for (const int row_warps : {1, 2, 4, 8, 16})
        for (const int stages : {2, 3, 4, 5}) {
          const int columns = std::max(1, 132 / splits);
          LinearRowsPlan plan = {(problem.weight.strips + columns - 1) / columns, splits, row_warps, stages};
          LinearRowsParams params;
          if (!linear_rows(problem, &params, plan).function) continue;
          rows_line(p, plan, read);
        }
  }
}

void tiles_suite() {
  constexpr int kShapes[][2] = {{14336, 4096}, {4096, 14336}, {4096, 4096}, {6144, 4096}};
  for (const auto& [columns, k] : kShapes)
    for (const int rows : {16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
      const Problem p(columns, k, 4, 64, rows, Dtype::bf16);
      tiles_line(p, linear_tiles_plan(p.problem(0)));
    }
  for (const int rows : {64, 512, 4096}) {
    const Problem eight(14336, 4096, 8, 64, rows, Dtype::bf16), half(14336, 4096, 4, 64, rows, Dtype::f16),
        pair(14336, 4096, 4, 64, rows, Dtype::bf16, true);
    tiles_line(eight, linear_tiles_plan(eight.problem(0)));
    tiles_line(half, linear_tiles_plan(half.problem(0)));
    tiles_line(pair, linear_tiles_plan(pair.problem(0)));
  }
}

void tile_plans_suite() {
  for (const auto& [columns, k] : {std::pair{14336, 4096}, {4096, 14336}})
    for (const int rows : {16, 64, 128, 512, 4096}) {
      const Problem p(columns, k, 4, 64, rows, Dtype::bf16);
      for (const LinearTilesPlan& shape : {LinearTilesPlan{2, 128, 1}, {1, 128, 1}, {2, 64, 1}, {1, 64, 1}, {2, 32, 1}, {1, 32, 1}})
        for (const int splits : {1, 2, 4, 7, 8}) {
          if ((rows > 512 && splits > 1) || (rows == 4096 && shape.columns < 128)) continue;
          LinearTilesPlan plan = shape;
          plan.splits = splits;
          LinearTilesParams params;
          if (linear_tiles(p.problem(0), &params, plan).function) tiles_line(p, plan);
        }
    }
}

void dense_suite() {
  for (const auto& [columns, k] : {std::pair{4096, 14336}, {14336, 4096}, {4096, 4096}, {6144, 4096}, {128256, 4096}}) {
    const size_t bytes = static_cast<size_t>(columns) * k * 2;
    const int copies = static_cast<int>(std::max<size_t>(2, kColdBytes / bytes + 1));
    const Buffer weights(bytes * copies), x(static_cast<size_t>(16) * k * 2), y(static_cast<size_t>(16) * columns * 2);
    fill_numbers(weights, 1, 0.02f, 0, Dtype::bf16), fill_numbers(x, 2, 1, 0, Dtype::bf16);
    const double read = read_time(bytes);
    for (const int rows : {1, 4, 8, 16}) {
      LinearProblem p;
      p.weight.k = k, p.weight.scale_type = Dtype::bf16, p.x = x.get(), p.x_stride = k, p.x_type = p.y_type = Dtype::bf16, p.rows = rows;
      p.outputs[0].y = y.get(), p.outputs[0].stride = p.outputs[0].columns = columns, p.output_count = 1;
      const Buffer workspace(linear_dense_workspace(p) + 16);
      p.workspace = workspace.get();
      const double us = time_calls(copies, [&](int i, cudaStream_t s) {
        const void* weight = weights.bytes() + i * bytes;
        LinearDenseParams params;
        launch(linear_dense(p, &weight, &params), params, s);
      });
      std::printf(
          "{\"kernel\":\"linear_dense\",\"out\":%d,\"in\":%d,\"type\":\"bf16\",\"rows\":%d,\"us\":%.2f,\"tb_s\":%.2f,\"of_read\":%.2f}\n",
          columns, k, rows, us, bytes / us / 1e6, read / us);
    }
  }
}

void norm_suite() {
  for (const int rows : {1, 8192}) {
    const int n = 4096, calls = 20;
    const size_t bytes = static_cast<size_t>(rows) * n * 2;
    const Buffer x(bytes), residual(bytes), weight(n * 2), frequency(256), q(bytes * 3 / 2);
    fill_numbers(x, 1, 1, 0, Dtype::bf16), fill_numbers(residual, 2, 1, 0, Dtype::bf16), fill_numbers(weight, 3, 1, 0, Dtype::bf16);
    RmsNormParams norm;
    norm.x = x.get(), norm.residual = residual.get(), norm.sum = residual.get(), norm.out = x.get(), norm.weight = weight.get();
    norm.rows = rows, norm.n = n, norm.eps = 1e-5f, norm.type = norm.weight_type = Dtype::bf16;
    const double norm_us = time_calls(calls, [&](int, cudaStream_t s) { launch(rms_norm(norm), norm, s); });
    RopeParams turn;
    turn.tensors[0] = {q.get(), q.get(), nullptr, 4096, 4096, 32};
    turn.tensors[1] = {q.bytes() + bytes, q.bytes() + bytes, nullptr, 1024, 1024, 8};
    turn.inv_freq = static_cast<const float*>(frequency.get()), turn.tokens = rows, turn.head_dim = 128, turn.pairs = 64,
    turn.type = Dtype::bf16;
    const double rope_us = time_calls(calls, [&](int, cudaStream_t s) { launch(rope(&turn), turn, s); });
    std::printf("{\"kernel\":\"rms_norm\",\"rows\":%d,\"n\":4096,\"residual\":1,\"us\":%.2f,\"tb_s\":%.2f}\n", rows, norm_us,
                4.0 * bytes / norm_us / 1e6);
    std::printf("{\"kernel\":\"rope\",\"tokens\":%d,\"heads\":40,\"us\":%.2f,\"tb_s\":%.2f}\n", rows, rope_us, 2.5 * bytes / rope_us / 1e6);
  }
}

void dequantize_suite() {
  for (const int bits : {4, 8}) {
    const Problem p(14336, 4096, bits, 64, 1, Dtype::bf16);
    const Buffer to(static_cast<size_t>(14336) * 4096 * 2);
    const double us = time_calls(p.copies, [&](int i, cudaStream_t s) {
      DequantizeParams params;
      launch(linear_dequantize(p.shape(), p.packed[i].get(), 0, 14336, Dtype::bf16, to.get(), &params), params, s);
    });
    std::printf("{\"kernel\":\"linear_dequantize\",\"out\":14336,\"in\":4096,\"bits\":%d,\"us\":%.2f,\"tb_s\":%.2f}\n", bits, us,
                (p.bytes() + to.size()) / us / 1e6);
  }
}

}  // namespace
}  // namespace tersor::kernels::cuda

int main(int argc, char** argv) {
  using namespace tersor::kernels::cuda;
  const std::pair<const char*, void (*)()> suites[] = {
      {"rows", rows_suite}, {"tiles", tiles_suite}, {"dequantize", dequantize_suite}, {"dense", dense_suite},
      {"norm", norm_suite}, {"plans", plans_suite}, {"tile_plans", tile_plans_suite}};
  for (const auto& [name, run] : suites) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], name) == 0;
    if (wanted) run();
  }
  return 0;
}
