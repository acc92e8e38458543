#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {
namespace {

using Counts = std::vector<int>;

Counts draw(const Sampling& sampling, const std::vector<float>& logits, int times, const std::vector<int32_t>& history = {}) {
  Sampler sampler(sampling);
  Counts counts(logits.size());
  for (int i = 0; i < times; ++i) ++counts.at(static_cast<size_t>(sampler.pick(logits, history)));
  return counts;
}

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625, out of order.
std::vector<float> halves() { return {std::log(0.0625f), std::log(0.5f), std::log(0.125f), std::log(0.25f), std::log(0.0625f)}; }

TEST(Sampler, GreedyTakesTheHighestAndTheFirstOfEquals) {
  Sampler greedy({});
  EXPECT_EQ(greedy.pick(std::vector<float>{-3, 7, 2, 7}, {}), 1);
  EXPECT_EQ(greedy.pick(std::vector<float>{-INFINITY, -5}, {}), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const auto counts = draw({.temperature = 1, .seed = 3}, halves(), 40000);
  const double expected[] = {0.0625, 0.5, 0.125, 0.25, 0.0625};
  for (size_t i = 0; i < counts.size(); ++i) {
    const double sigma = std::sqrt(40000 * expected[i] * (1 - expected[i]));
    EXPECT_NEAR(counts[i], 40000 * expected[i], 5 * sigma) << "token " << i;
  }
}

TEST(Sampler, TemperatureSquaresTheOdds) {
  const auto counts = draw({.temperature = 0.5f, .seed = 3}, {0, std::log(2.0f)}, 30000);
  EXPECT_NEAR(static_cast<double>(counts[1]) / counts[0], 4, 0.3);
}

TEST(Sampler, VerySmallTemperaturesAreGreedyAndFinite) {
  EXPECT_EQ(draw({.temperature = 1e-30f, .seed = 1}, {1, 3, 2}, 50), (Counts{0, 50, 0}));
}

TEST(Sampler, TopKKeepsTheBest) {
  const auto counts = draw({.temperature = 1, .top_k = 2, .seed = 5}, halves(), 20000);
  EXPECT_EQ(counts[0] + counts[2] + counts[4], 0);
  EXPECT_NEAR(counts[1], 20000 * 2 / 3.0, 400);
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheShare) {
  const auto kept = [](float top_p) {
    const auto counts = draw({.temperature = 1, .top_p = top_p, .seed = 5}, halves(), 5000);
    std::vector<bool> seen;
    for (int c : counts) seen.push_back(c > 0);
    return seen;
  };
  EXPECT_EQ(kept(0.4f), (std::vector<bool>{false, true, false, false, false}));
  EXPECT_EQ(kept(0.7f), (std::vector<bool>{false, true, false, true, false}));
  EXPECT_EQ(kept(0.9f), (std::vector<bool>{true, true, true, true, false}));  // of two equal ones the first
  EXPECT_EQ(kept(1.0f), (std::vector<bool>{true, true, true, true, true}));
}

TEST(Sampler, TopPAgreesWithAFullSort) {
  std::mt19937 random(11);
  for (float spread : {0.01f, 1.0f, 4.0f}) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(5000);
    for (auto& l : logits) l = normal(random);
    std::vector<size_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    double sum = 0, reached = 0;
    for (float l : logits) sum += std::exp(static_cast<double>(l));
    size_t count = 0;
    while (reached < 0.8 * sum) reached += std::exp(static_cast<double>(logits[order[count++]]));
    std::vector<bool> allowed(logits.size());
    for (size_t i = 0; i < count; ++i) allowed[order[i]] = true;
    const auto counts = draw({.temperature = 1, .top_p = 0.8f, .seed = 9}, logits, 300);
    for (size_t i = 0; i < counts.size(); ++i) EXPECT_TRUE(allowed[i] || counts[i] == 0) << "token " << i << " spread " << spread;
  }
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const auto counts = draw({.temperature = 1, .min_p = 0.4f, .seed = 5}, halves(), 3000);
  EXPECT_EQ(counts[0] + counts[2] + counts[4], 0);
  EXPECT_GT(counts[3], 0);
}

TEST(Sampler, RepetitionPenaltyCountsEachTokenOfTheWindowOnce) {
  Sampler sampler({.repetition_penalty = 2, .repetition_window = 3});
  const std::vector<float> logits{4, 3, -1};
  EXPECT_EQ(sampler.pick(logits, std::vector<int32_t>{0, 0}), 1);
  EXPECT_EQ(sampler.pick(logits, std::vector<int32_t>{0, 1, 1, 1}), 0) << "token 0 is out of the window";
  EXPECT_EQ(sampler.pick(logits, std::vector<int32_t>{0, 1, 2}), 0);
  EXPECT_EQ(sampler.pick(std::vector<float>{-2, -3}, std::vector<int32_t>{0}), 1) << "negative logits go down, too";
}

TEST(Sampler, SeedsDecide) {
  const Sampling sampling{.temperature = 1, .seed = 42};
  const std::vector<float> logits(100, 0.0f);
  const auto sequence = [&](uint64_t seed) {
    Sampling s = sampling;
    s.seed = seed;
    Sampler sampler(s);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.pick(logits, {}));
    return ids;
  };
  EXPECT_EQ(sequence(42), sequence(42));
  EXPECT_NE(sequence(42), sequence(43));
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  for (float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature});
    EXPECT_THROW(sampler.pick(std::vector<float>{1, NAN, 2}, {}), Error);
    EXPECT_THROW(sampler.pick(std::vector<float>{1, INFINITY}, {}), Error);
    EXPECT_THROW(sampler.pick(std::vector<float>{-INFINITY, -INFINITY}, {}), Error);
    EXPECT_THROW(sampler.pick({}, {}), Error);
  }
  Sampler penalised({.repetition_penalty = 2});
  EXPECT_THROW(penalised.pick(std::vector<float>{1, 2}, std::vector<int32_t>{7}), Error);
}

TEST(Sampler, NeverPicksARuledOutToken) {
  const auto counts = draw({.temperature = 100, .seed = 2}, {0, -INFINITY, 0}, 1000);
  EXPECT_EQ(counts[1], 0);
}

TEST(Sampler, RefusesValuesOutOfRangeAndSaysTheRange) {
  const auto refused = [](const Sampling& sampling, const std::string& name) {
    try {
      Sampler sampler(sampling);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("give"), std::string::npos) << error.what();
    }
  };
  refused({.temperature = -1}, "temperature");
  refused({.temperature = NAN}, "temperature");
  refused({.top_k = -1}, "top-k");
  refused({.top_p = 0}, "top-p");
  refused({.top_p = 1.5f}, "top-p");
  refused({.min_p = -0.1f}, "min-p");
  refused({.repetition_penalty = 0}, "repetition penalty");
  refused({.repetition_window = -1}, "repetition window");
}

}  // namespace
}  // namespace tersor::model
