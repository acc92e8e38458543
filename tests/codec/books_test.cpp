// The Lloyd-Max codebooks against an independent computation, the bounds of theory, and their own definition.
#include "codec/books.h"

#include <gtest/gtest.h>

#include <thread>

#include "codec/vectors.h"

namespace tersor::codec {
namespace {

// Half a unit of the seventh significant digit, the last one that the reference states.
double half_unit(double reference) { return 0.501 * std::pow(10.0, std::floor(std::log10(std::abs(reference))) - 6); }

TEST(Books, AgreeWithAnIndependentComputationToSevenDigits) {
  int checked = 0;
  for (const auto& [dim, books] : reference()["books"].items())
    for (const auto& [bits, expected] : books.items()) {
      SCOPED_TRACE("dim " + dim + " bits " + bits);
      const Book& book = lloyd_max_book(std::stoi(dim), std::stoi(bits));
      const double distortion = expected["distortion"];
      EXPECT_NEAR(book.distortion, distortion, half_unit(distortion));
      if (!expected.contains("levels")) continue;
      const std::vector<double> positive = expected["levels"];
      ASSERT_EQ(book.levels.size(), 2 * positive.size());
      for (size_t i = 0; i < positive.size(); ++i, ++checked) {
        EXPECT_NEAR(book.levels[positive.size() + i], positive[i], half_unit(positive[i]));
        EXPECT_EQ(book.levels[positive.size() - 1 - i], -book.levels[positive.size() + i]);
      }
    }
  EXPECT_EQ(checked, 4 * (1 + 2 + 4 + 8 + 16));
}

// Zador's bound for the Gaussian, which the sphere's coordinate stays below, and Shannon's.
TEST(Books, DistortionLiesBetweenTheBoundsOfTheory) {
  for (const int dim : {16, 64, 80, 128, 256, 1024})
    for (int bits = 1; bits <= 8; ++bits) {
      const double distortion = lloyd_max_book(dim, bits).distortion, quarter = std::pow(4.0, -bits);
      EXPECT_LE(distortion, 2.7207 * quarter) << dim << " " << bits;
      EXPECT_GE(distortion, quarter) << dim << " " << bits;
    }
}

TEST(Books, OneBitHasItsClosedForm) {
  for (const int dim : {8, 64, 100, 1024}) {
    const double level = std::sqrt(dim / M_PI) * std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0));
    EXPECT_NEAR(lloyd_max_book(dim, 1).levels[1], level, 1e-9) << dim;
    EXPECT_NEAR(lloyd_max_book(dim, 1).distortion, 1 - level * level, 1e-9) << dim;
  }
}

// Every level is the mean of its cell, by plain summation of the density.
TEST(Books, LevelsAreCentroids) {
  for (const int dim : {8, 12, 64, 1024})
    for (const int bits : {2, 4, 6}) {
      const std::vector<double>& levels = lloyd_max_book(dim, bits).levels;
      const double end = std::min(std::sqrt(static_cast<double>(dim)), 9.0);
      for (size_t i = levels.size() / 2; i < levels.size(); ++i) {
        const double lo = i == levels.size() / 2 ? 0 : (levels[i - 1] + levels[i]) / 2;
        const double hi = i + 1 == levels.size() ? end : (levels[i] + levels[i + 1]) / 2;
        double mass = 0, first = 0;
        for (int step = 0; step < 4000; ++step) {
          const double t = lo + (step + 0.5) * (hi - lo) / 4000, weight = std::pow(1 - t * t / dim, (dim - 3) / 2.0);
          mass += weight, first += weight * t;
        }
        EXPECT_NEAR(levels[i], first / mass, 2e-6) << dim << " " << bits << " level " << i;
      }
    }
}

// What the integer grid costs: at most .1 % of the distortion up to 4 bits, 1 % at 6.
TEST(Books, GridBooksAreOddSymmetricAndNearlyAsGood) {
  for (const int dim : {16, 64, 80, 128, 256, 1024})
    for (int bits = 1; bits <= 6; ++bits) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << " bits " << bits);
      const GridBook& book = grid_book(dim, bits);
      const Book& free = lloyd_max_book(dim, bits);
      ASSERT_EQ(book.grid.size(), size_t{1} << bits);
      for (size_t i = 0; i < book.grid.size(); ++i) {
        EXPECT_EQ(book.grid[i] & 1, 1);
        EXPECT_LE(std::abs(book.grid[i]), grid_max(bits));
        EXPECT_EQ(book.grid[book.grid.size() - 1 - i], -book.grid[i]);
        if (i > 0) { EXPECT_LT(book.grid[i - 1], book.grid[i]); }
        EXPECT_NEAR(book.grid[i] * book.step, free.levels[i], 1.01 * book.step + 0.01 * std::abs(free.levels[i]));
      }
      EXPECT_LE(book.distortion, free.distortion * (bits <= 4 ? 1.001 : 1.01));
      EXPECT_GE(book.distortion, free.distortion * (1 - 1e-9));
    }
}

TEST(Books, ManyThreadsGetTheSameBook) {
  std::vector<std::thread> threads;
  std::vector<const Book*> books(8);
  for (size_t i = 0; i < books.size(); ++i) threads.emplace_back([&books, i] { books[i] = &lloyd_max_book(176, 5); });
  for (std::thread& thread : threads) thread.join();
  for (const Book* book : books) EXPECT_EQ(book, books[0]);
}

}  // namespace
}  // namespace tersor::codec
