// Quantised linear kernels against plain sums in double, over the shapes models have and the ones that break tiles.
#include <gtest/gtest.h>

#include "kernels/cuda/linear_layout.h"
#include "linear_cases.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr Dtype F16 = Dtype::f16, BF16 = Dtype::bf16, F32 = Dtype::f32;
// Float sums of up to 16k products in tensor cores, which cut rather than round (about 2^-22 of the largest of 8).
constexpr double kSumEps = 0x1p-19;

LinearCase make(std::vector<int> columns, int k, int bits, int group, int rows, Dtype type = F16) {
  return {std::move(columns), k, bits, group, rows, type, type, type, type};
}

Buffer workspace_of(size_t bytes) { return Buffer(bytes + 16); }

void run_rows(const LinearFixture& f, LinearRowsPlan plan = {}) {
  LinearProblem problem = f.problem();
  const Buffer workspace = workspace_of(linear_rows_workspace(problem, plan));
  problem.workspace = workspace.get();
  LinearRowsParams params;
  const Launch l = linear_rows(problem, &params, plan);
  ASSERT_NE(l.function, nullptr);
  std::vector<uint8_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    f.poison();
    launch(l, params);
    check(cudaDeviceSynchronize(), "linear_rows");
    EXPECT_LE(f.worst(0, kSumEps, problem.rows <= 4), 1.0) << "repeat " << repeat;
    if (repeat == 0) first = f.output(0);
    EXPECT_EQ(f.output(0), first) << "results move";
  }
}

TEST(LinearRepack, DeviceAgreesWithReference) {
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const bool paired : {false, true})
        for (const Dtype stored : {BF16, F32}) {
          LinearCase c = make(paired ? std::vector<int>{40, 40} : std::vector<int>{40, 24}, 3 * 128, bits, group, 1, BF16);
          c.paired = paired, c.stored_scale = stored;
          const LinearFixture f(c, 1);
          std::vector<uint8_t> want(f.packed().size(), 0xff);
          for (size_t i = 0; i < (paired ? 1u : 2u); ++i) {
            const HostWeight& a = f.weight(i);
            const HostWeight& b = f.weight(1);
            RepackParams p = {{{a.codes.data(), a.scales.bytes.data(), a.biases.bytes.data()},
                               {b.codes.data(), b.scales.bytes.data(), b.biases.bytes.data()}},
                              want.data(),
                              a.rows,
                              bits,
                              group,
                              c.k,
                              f.first_strip(i),
                              paired,
                              BF16,
                              stored};
            linear_repack_reference(p, linear_strips(a.rows, paired));
          }
          EXPECT_EQ(f.packed().read<uint8_t>(), want) << bits << " bits, group " << group;
        }
}

TEST(LinearDequantize, GivesTheRowsBack) {
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const bool paired : {false, true})
        for (const Dtype type : {F16, BF16}) {
          LinearCase c = make(paired ? std::vector<int>{40, 40} : std::vector<int>{24, 40}, 5 * 128, bits, group, 1, type);
          c.paired = paired;
          const LinearFixture f(c, 2);
          const size_t i = paired ? 0 : 1;
          const Buffer dense(static_cast<size_t>(paired ? 80 : 40) * c.k * 2, 0xff);
          DequantizeParams params;
          launch(linear_dequantize(f.shape(), f.packed().get(), f.first_strip(i), 40, type, dense.get(), &params), params);
          const std::vector<uint16_t> got = dense.read<uint16_t>();
          for (int half = 0; half < (paired ? 2 : 1); ++half)
            for (int r = 0; r < 40; ++r)
              for (int k = 0; k < c.k; ++k) {
                const float want = static_cast<float>(f.weight(paired ? half : 1).value(r, k));
                const uint16_t bits_wanted = type == F16 ? half_bits(want) : bfloat_bits(want);
                ASSERT_EQ(got[(static_cast<size_t>(half) * 40 + r) * c.k + k], bits_wanted) << bits << ' ' << group << ' ' << r << ' ' << k;
              }
        }
}

TEST(LinearRows, EveryFormatAndRowCount) {
  unsigned seed = 10;
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const Dtype type : {F16, BF16})
        for (const int rows : {1, 2, 7, 8, 9, 16}) {
          SCOPED_TRACE(testing::Message() << bits << " bits, group " << group << ", type " << static_cast<int>(type) << ", rows " << rows);
          run_rows(LinearFixture(make({176}, 1152, bits, group, rows, type), ++seed));
        }
}

TEST(LinearRows, MixedTypes) {
  for (const int bits : {4, 8})
    for (const Dtype x : {F16, BF16, F32})
      for (const Dtype scale : {F16, BF16, F32})
        for (const Dtype y : {F16, F32}) {
          LinearCase c = make({48}, 512, bits, 64, 3);
          c.x_type = x, c.scale_type = scale, c.y_type = y;
          c.stored_scale = scale;
          SCOPED_TRACE(testing::Message() << bits << ' ' << static_cast<int>(x) << ' ' << static_cast<int>(scale));
          run_rows(LinearFixture(c, 99));
          if (x == F32) continue;  // rounded on load: below
          c.rows = 6, c.stored_scale = x == scale ? scale : F32;
          run_rows(LinearFixture(c, 99));
        }
}

TEST(LinearRows, FloatXIsRoundedOnLoad) {
  for (const Dtype scale : {F16, BF16, F32}) {
    LinearCase c = make({48}, 512, 4, 64, 6);
    c.x_type = F32, c.scale_type = c.stored_scale = scale, c.y_type = F32;
    const LinearFixture f(c, 7);
    LinearProblem problem = f.problem();
    const Buffer workspace = workspace_of(linear_rows_workspace(problem));
    problem.workspace = workspace.get();
    LinearRowsParams params;
    launch(linear_rows(problem, &params), params);
    EXPECT_LE(f.worst(scale == F16 ? 0x1p-11 : 0x1p-8, kSumEps), 1.0);
  }
}

TEST(LinearRows, RaggedShapesAndPlans) {
  unsigned seed = 1000;
  for (const int columns : {1, 8, 17, 300})
    for (const int k : {32, 96, 288, 2336})
      for (const int rows : {1, 5, 13}) {
        const LinearFixture f(make({columns}, k, 4, 32, rows), ++seed);
        SCOPED_TRACE(testing::Message() << columns << 'x' << k << ", rows " << rows);
        run_rows(f);
        for (const int row_warps : {1, 4, 16})
          for (const int splits : {1, 2, 3}) {
            if (splits > (k + 255) / 256) continue;
            run_rows(f, {row_warps == 4 ? 3 : 1, splits, row_warps, 2});
          }
      }
}

TEST(LinearRows, PairsAndSegmentsWithEpilogues) {
  unsigned seed = 2000;
  for (const int rows : {1, 4, 16})
    for (const bool epilogue : {false, true})
      for (const int splits : {1, 4}) {
        LinearCase pair = make({200, 200}, 1024, 4, 64, rows, BF16);
        pair.paired = true, pair.bias = pair.residual = epilogue, pair.x_scale = 0.5f;
        LinearCase three = make({256, 72, 72}, 1024, 4, 64, rows, BF16);
        three.bias = three.residual = epilogue;
        SCOPED_TRACE(testing::Message() << "rows " << rows << ", splits " << splits);
        run_rows(LinearFixture(pair, ++seed), {4, splits, 4, 2});
        run_rows(LinearFixture(three, ++seed), {4, splits, 2, 3});
      }
}

TEST(LinearRows, ModelShapes) {
  unsigned seed = 3000;
  for (const int rows : {1, 16})
    for (const auto& [columns, k] : {std::pair{4096, 14336}, {14336, 4096}, {1024, 4096}}) {
      SCOPED_TRACE(testing::Message() << columns << 'x' << k << ", rows " << rows);
      run_rows(LinearFixture(make({columns}, k, 4, 64, rows, BF16), ++seed));
      if (rows == 1) run_rows(LinearFixture(make({columns}, k, 8, 64, rows), ++seed));
    }
}

TEST(LinearRows, NotANumberStaysOne) {
  for (const int rows : {1, 6})
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      LinearCase c = make({64}, 512, 4, 64, rows);
      c.bad = bad;
      const LinearFixture f(c, 4);
      LinearProblem problem = f.problem();
      const Buffer workspace = workspace_of(linear_rows_workspace(problem));
      problem.workspace = workspace.get();
      LinearRowsParams params;
      check(cudaMemset(problem.outputs[0].y, 0, 16), "clear");
      launch(linear_rows(problem, &params), params);
      EXPECT_FALSE(std::isfinite(Numbers::read(F16, f.output(0).data(), 0)));
    }
}

TEST(LinearRows, ExtremeNumbers) {
  for (const int bits : {4, 8})
    for (const int rows : {4, 6})
      for (const Dtype type : {F16, BF16}) {
        LinearCase c = make({64}, 512, bits, 64, rows, type);
        c.x_scale = type == F16 ? 15000.f : 1e18f;
        c.y_type = F32;
        run_rows(LinearFixture(c, 5));
        c.x_scale = type == F16 ? 3e-6f : 1e-30f;
        run_rows(LinearFixture(c, 6));
      }
}

TEST(LinearRows, UnsupportedProblemsHaveNoKernel) {
  LinearProblem p;
  p.weight = {3, 64, F16, 4096, 4, false}, p.rows = 1;
  LinearRowsParams params;
  EXPECT_EQ(linear_rows(p, &params).function, nullptr);
  p.weight = {4, 64, F16, 4096, 4, false}, p.rows = 17;
  EXPECT_EQ(linear_rows(p, &params).function, nullptr);
  p.weight = {4, 64, F16, 4096, 4, false}, p.rows = 5, p.x_type = BF16;
  EXPECT_EQ(linear_rows(p, &params).function, nullptr);
}

}  // namespace
}  // namespace tersor::kernels::cuda
