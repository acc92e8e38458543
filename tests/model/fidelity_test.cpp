#include "model/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tersor::model {
namespace {

using Row = std::vector<float>;

Row random_row(size_t size, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  Row row(size);
  for (auto& x : row) x = normal(random);
  return row;
}

// Straight from the definitions, in long double.
long double log_softmax(const Row& row, size_t i) {
  long double sum = 0;
  for (float x : row) sum += std::exp(static_cast<long double>(x));
  return row[i] - std::log(sum);
}

long double kl_by_definition(const Row& full, const Row& other) {
  long double kl = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const long double p = log_softmax(full, i);
    kl += std::exp(p) * (p - log_softmax(other, i));
  }
  return kl;
}

TEST(Fidelity, RowsFollowTheDefinitions) {
  const Row full = random_row(300, 1);
  Row other = full;
  const Row noise = random_row(300, 2, 0.1f);
  for (size_t i = 0; i < other.size(); ++i) other[i] += noise[i];
  const RowDistance d = compare_rows(full, other, 17);
  EXPECT_NEAR(d.kl, static_cast<double>(kl_by_definition(full, other)), 1e-12);
  EXPECT_NEAR(d.nll_full, static_cast<double>(-log_softmax(full, 17)), 1e-12);
  EXPECT_NEAR(d.nll, static_cast<double>(-log_softmax(other, 17)), 1e-12);
  double sum = 0, max = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double error = std::abs(static_cast<double>(full[i]) - other[i]);
    sum += error;
    max = std::max(max, error);
  }
  EXPECT_NEAR(d.error_sum, sum, 1e-12);
  EXPECT_EQ(d.error_max, max);
}

TEST(Fidelity, EqualRowsAreAtDistanceZero) {
  const Row row = random_row(1000, 4);
  const RowDistance d = compare_rows(row, row, -1);
  EXPECT_EQ(d.kl, 0);
  EXPECT_EQ(d.error_max, 0);
  EXPECT_TRUE(d.same_top);
}

TEST(Fidelity, AShiftOfAllLogitsChangesErrorsButNotProbabilities) {
  const Row row = random_row(200, 5);
  Row shifted = row;
  for (auto& x : shifted) x += 2;
  const RowDistance d = compare_rows(row, shifted, 3);
  EXPECT_NEAR(d.kl, 0, 1e-6);  // the shift itself rounds in float
  EXPECT_NEAR(d.error_max, 2, 1e-5);
  EXPECT_NEAR(d.nll, d.nll_full, 1e-5);
}

TEST(Fidelity, LargeLogitsDoNotOverflow) {
  const RowDistance d = compare_rows(Row{1e4f, 0, -1e4f}, Row{1e4f, 1, -1e4f}, 0);
  EXPECT_TRUE(std::isfinite(d.kl));
  EXPECT_NEAR(d.kl, 0, 1e-12);
}

TEST(Fidelity, MeterSummarisesRows) {
  // Two hundred rows of two logits: all alike but the last two, of which one flips.
  const size_t rows = 200;
  Row full, other;
  std::vector<int32_t> targets(rows, 0);
  targets.back() = -1;
  for (size_t i = 0; i < rows; ++i) {
    full.insert(full.end(), {1, 0});
    other.insert(other.end(), {i == 198 ? 0.5f : i == 199 ? -1.0f : 1.0f, 0});
  }
  FidelityMeter meter;
  const size_t half = 2 * (rows / 2);
  meter.add({full.data(), half}, {other.data(), half}, {targets.data(), rows / 2});
  meter.add(std::span(full).subspan(half), std::span(other).subspan(half), std::span(targets).subspan(rows / 2));
  const Fidelity f = meter.result();
  const double kl_small = static_cast<double>(kl_by_definition({1, 0}, {0.5f, 0})),
               kl_big = static_cast<double>(kl_by_definition({1, 0}, {-1, 0}));
  EXPECT_EQ(f.positions, 200);
  EXPECT_NEAR(f.kl_mean, (kl_small + kl_big) / 200, 1e-12);
  EXPECT_EQ(f.kl_p99, 0) << "rank 198 of 200";
  EXPECT_NEAR(f.kl_max, kl_big, 1e-12);
  EXPECT_DOUBLE_EQ(f.top1_agreement, 199.0 / 200);
  EXPECT_NEAR(f.logit_error_mean, 2.5 / 400, 1e-12);
  EXPECT_EQ(f.logit_error_max, 2);
  EXPECT_NEAR(f.perplexity_full, std::exp(-static_cast<double>(log_softmax({1, 0}, 0))), 1e-12);
  EXPECT_GT(f.perplexity, f.perplexity_full);
  EXPECT_FALSE(f.strict_passed());
}

TEST(Fidelity, LogitsThatAreNotNumbersAreAnError) {
  FidelityMeter meter;
  const std::vector<int32_t> targets{0, 0};
  EXPECT_THROW(meter.add(Row{1, 2, 3, 4}, Row{1, 2, 3, NAN}, targets), Error);
  EXPECT_THROW(meter.add(Row{1, INFINITY, 3, 4}, Row{1, INFINITY, 3, 4}, targets), Error);
  EXPECT_THROW(meter.add(Row{1, 2, 3}, Row{1, 2, 3}, targets), Error) << "rows of unequal length";
}

TEST(Fidelity, StrictPolicyLooksAtTheWorstPosition) {
  Fidelity f;
  EXPECT_FALSE(f.strict_passed()) << "nothing was measured";
  f.positions = 10;
  f.top1_agreement = 1;
  f.kl_max = 0.001;
  f.logit_error_mean = 0.05;
  f.logit_error_max = 0.5;
  EXPECT_TRUE(f.strict_passed());
  for (auto worse : {&Fidelity::kl_max, &Fidelity::logit_error_mean, &Fidelity::logit_error_max}) {
    Fidelity g = f;
    g.*worse *= 1.01;
    EXPECT_EQ(g.strict_failed().size(), 1u);
  }
  f.top1_agreement = 0.999;
  EXPECT_EQ(f.strict_failed(), std::vector<std::string>{"top1_agreement"});
}

}  // namespace
}  // namespace tersor::model
