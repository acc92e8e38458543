// Quantised linear kernels for many rows against plain sums in double.
#include <gtest/gtest.h>

#include "linear_cases.cuh"

namespace tersor::kernels::cuda {
namespace {

constexpr Dtype F16 = Dtype::f16, BF16 = Dtype::bf16;
constexpr double kSumEps = 0x1p-19;

LinearCase make(std::vector<int> columns, int k, int bits, int group, int rows, Dtype type) {
  return {std::move(columns), k, bits, group, rows, type, type, type, type};
}

void run_tiles(const LinearFixture& f, LinearTilesPlan plan = {}) {
  LinearProblem problem = f.problem();
  const Buffer workspace(linear_tiles_workspace(problem, plan) + 16);
  problem.workspace = workspace.get();
  LinearTilesParams params;
  const Launch l = linear_tiles(problem, &params, plan);
  ASSERT_NE(l.function, nullptr);
  std::vector<uint8_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    f.poison();
    launch(l, params);
    check(cudaDeviceSynchronize(), "linear_tiles");
    if (repeat == 0) first = f.output(0);
    EXPECT_EQ(f.output(0), first) << "results move";
  }
  EXPECT_LE(f.worst(problem.x_type == F16 ? 0x1p-11 : 0x1p-8, kSumEps), 1.0);
}

TEST(LinearTiles, EveryFormatAndShapeOfTile) {
  unsigned seed = 10;
  constexpr LinearTilesPlan kPlans[] = {{2, 128, 1}, {1, 128, 2}, {1, 64, 3}, {1, 32, 1}, {2, 128, 2}, {2, 64, 2}, {2, 32, 1}};
  for (const int bits : {4, 8})
    for (const int group : {32, 64, 128})
      for (const Dtype type : {F16, BF16})
        for (const LinearTilesPlan& plan : kPlans) {
          SCOPED_TRACE(testing::Message() << bits << " bits, group " << group << ", type " << static_cast<int>(type) << ", blocks "
                                          << plan.blocks << ", columns " << plan.columns << ", splits " << plan.splits);
          run_tiles(LinearFixture(make({280}, 1152, bits, group, 75, type), ++seed), plan);
        }
}

TEST(LinearTiles, RaggedShapes) {
  unsigned seed = 100;
  for (const int columns : {1, 24, 257})
    for (const int k : {32, 288, 1312})
      for (const int rows : {1, 17, 129}) {
        SCOPED_TRACE(testing::Message() << columns << 'x' << k << ", rows " << rows);
        run_tiles(LinearFixture(make({columns}, k, 4, 32, rows, BF16), ++seed));
      }
}

TEST(LinearTiles, PairsAndSegmentsWithEpilogues) {
  unsigned seed = 200;
  constexpr LinearTilesPlan kPlans[] = {{2, 128, 1}, {1, 64, 2}, {1, 32, 1}};
  for (const LinearTilesPlan& plan : kPlans)
    for (const bool epilogue : {false, true})
      for (const Dtype type : {F16, BF16}) {
        LinearCase pair = make({200, 200}, 512, 4, 64, 70, type);
        pair.paired = true, pair.bias = pair.residual = epilogue, pair.x_scale = 0.5f;
        LinearCase three = make({256, 72, 75}, 512, 4, 64, 70, type);
        three.bias = three.residual = epilogue;
        SCOPED_TRACE(testing::Message() << "columns " << plan.columns << ", splits " << plan.splits << ", epilogue " << epilogue);
        run_tiles(LinearFixture(pair, ++seed), plan);
        run_tiles(LinearFixture(three, ++seed), plan);
      }
}

TEST(LinearTiles, ModelShapes) {
  unsigned seed = 300;
  for (const int rows : {64, 512})
    for (const auto& [columns, k] : {std::pair{4096, 14336}, {14336, 4096}, {1024, 4096}}) {
      SCOPED_TRACE(testing::Message() << columns << 'x' << k << ", rows " << rows);
      run_tiles(LinearFixture(make({columns}, k, 4, 64, rows, BF16), ++seed));
    }
}

TEST(LinearTiles, UnsupportedProblemsHaveNoKernel) {
  LinearProblem p;
  p.weight = {4, 64, Dtype::f32, 4096, 4, false}, p.rows = 64, p.output_count = 1;
  LinearTilesParams params;
  EXPECT_EQ(linear_tiles(p, &params).function, nullptr);
  p.weight.scale_type = F16, p.compute_capability = 80;
  EXPECT_EQ(linear_tiles(p, &params).function, nullptr);
}

}  // namespace
}  // namespace tersor::kernels::cuda
