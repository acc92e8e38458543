// Dense linear kernels against plain sums in double.
#include <gtest/gtest.h>

#include <cmath>

#include "linear_device.cuh"

namespace tersor::kernels::cuda {
namespace {

struct DenseCase {
  std::vector<int> columns;
  int k, rows;
  Dtype type = Dtype::bf16, x_type = Dtype::bf16;
  bool paired = false, bias = false, residual = false;
};

Numbers random_numbers(Dtype type, size_t n, float scale, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  Numbers v(type, n);
  for (size_t i = 0; i < n; ++i) v.set(i, normal(rng) * scale);
  return v;
}

double dot(const Numbers& a, size_t at_a, const Numbers& b, size_t at_b, int n, double* absolute) {
  double sum = 0;
  *absolute = 0;
  for (int i = 0; i < n; ++i) {
    const double product = static_cast<double>(a.values[at_a + i]) * b.values[at_b + i];
    sum += product, *absolute += std::fabs(product);
  }
  return sum;
}

void run_dense(const DenseCase& c, unsigned seed) {
  std::mt19937 rng(seed);
  const Numbers x = random_numbers(c.x_type, static_cast<size_t>(c.rows) * c.k, 1, rng);
  const Buffer x_device(x.bytes);
  std::vector<Numbers> weights, biases, residuals;
  std::vector<Buffer> weights_device, biases_device, residuals_device, y;
  std::vector<const void*> pointers;
  LinearProblem problem;
  problem.weight.k = c.k, problem.weight.scale_type = c.type, problem.weight.paired = c.paired;
  problem.x = x_device.get(), problem.x_stride = c.k, problem.x_type = c.x_type, problem.y_type = c.type, problem.rows = c.rows;
  problem.output_count = c.paired ? 1 : static_cast<int>(c.columns.size());
  for (size_t i = 0; i < c.columns.size(); ++i) {
    weights.push_back(random_numbers(c.type, static_cast<size_t>(c.columns[i]) * c.k, 0.05f, rng));
    biases.push_back(random_numbers(c.type, c.columns[i], 1, rng));
    residuals.push_back(random_numbers(c.type, static_cast<size_t>(c.rows) * c.columns[i], 1, rng));
    weights_device.emplace_back(weights[i].bytes), biases_device.emplace_back(biases[i].bytes);
    residuals_device.emplace_back(residuals[i].bytes), y.emplace_back(residuals[i].bytes.size(), 0xff);
    pointers.push_back(weights_device[i].get());
    LinearOutput& out = problem.outputs[i];
    out.y = y[i].get(), out.stride = out.columns = c.columns[i];
    if (c.bias) out.bias = biases_device[i].get();
    if (c.residual) out.residual = residuals_device[i].get();
  }
  if (c.bias && c.paired) problem.outputs[0].bias_up = biases_device[1].get();
  const Buffer workspace(linear_dense_workspace(problem) + 16);
  problem.workspace = workspace.get();
  LinearDenseParams params;
  const Launch l = linear_dense(problem, pointers.data(), &params);
  ASSERT_NE(l.function, nullptr);
  launch(l, params);
  check(cudaDeviceSynchronize(), "linear_dense");
  const double eps = c.type == Dtype::f16 ? 0x1p-11 : 0x1p-8, x_eps = c.x_type == c.type ? 0x1p-19 : eps;
  for (int i = 0; i < problem.output_count; ++i) {
    const std::vector<uint8_t> got = y[i].read<uint8_t>();
    const int step = 1.0 * c.columns[i] * c.k * c.rows > 3e7 ? 31 : 1;
    for (int m = 0; m < c.rows; ++m)
      for (int n = m % step; n < c.columns[i]; n += step) {
        double absolute, want = dot(x, static_cast<size_t>(m) * c.k, weights[i], static_cast<size_t>(n) * c.k, c.k, &absolute);
        double bound = x_eps * absolute;
        if (c.bias) want += biases[i].values[n];
        if (c.paired) {
          double absolute_up, up = dot(x, static_cast<size_t>(m) * c.k, weights[1], static_cast<size_t>(n) * c.k, c.k, &absolute_up);
          if (c.bias) up += biases[1].values[n];
          const double gate = want / (1 + std::exp(-want));
          bound = 1.1 * bound * std::fabs(up) + x_eps * absolute_up * std::fabs(gate) + 1e-5 * std::fabs(gate * up);
          want = gate * up;
        }
        const size_t at = static_cast<size_t>(m) * c.columns[i] + n;
        if (c.residual) want += residuals[i].values[at];
        bound += eps * 1.01 * std::fabs(want) + 1e-7;
        ASSERT_NEAR(Numbers::read(c.type, got.data(), at), want, bound) << "output " << i << ", row " << m << ", column " << n;
      }
  }
}

TEST(LinearDense, ShapesTypesAndEpilogues) {
  unsigned seed = 1;
  for (const Dtype type : {Dtype::f16, Dtype::bf16})
    for (const int rows : {1, 3, 8, 9, 16})
      for (const int k : {8, 104, 576, 2048}) {
        SCOPED_TRACE(testing::Message() << "rows " << rows << ", k " << k);
        run_dense({{77}, k, rows, type, type}, ++seed);
        run_dense({{256, 72, 40}, k, rows, type, type, false, true, true}, ++seed);
        run_dense({{100, 100}, k, rows, type, type, true, true, true}, ++seed);
        run_dense({{50}, k, rows, type, Dtype::f32}, ++seed);
      }
}

TEST(LinearDense, ModelShapes) {
  for (const int rows : {1, 16}) {
    run_dense({{4096}, 14336, rows}, 7);
    run_dense({{4096, 1024, 1024}, 4096, rows}, 8);
  }
}

}  // namespace
}  // namespace tersor::kernels::cuda
