// Books, distortions and sizes against tests/data/codec_reference.json: the same quantities by an independent computation.
#include <gtest/gtest.h>

#include "codec/books.h"
#include "codec/rvq_books.h"
#include "codec/vectors.h"

namespace tersor::codec {
namespace {

using Json = nlohmann::json;

constexpr double kSevenDigits = 1e-6;  // the reference is rounded to 7 digits, and its own rounding is half of the last

void expect_close(double ours, double theirs, double relative = kSevenDigits) { EXPECT_NEAR(ours, theirs, relative * std::abs(theirs)); }

std::vector<std::string> split_name(const std::string& name) {
  const size_t plus = name.find('+');
  return {name.substr(0, plus), name.substr(plus + 1)};
}

TEST(Reference, EveryLloydMaxBookHasItsSevenDigits) {
  int books = 0;
  for (const auto& [dim, rows] : codec_reference()["1_lloyd_max"]["by_dim"].items()) {
    if (dim == "gaussian_limit") continue;
    for (const auto& [bits, row] : rows.items()) {
      SCOPED_TRACE(dim + " " + bits);
      const Book& book = lloyd_max_book(std::stoi(dim), std::stoi(bits));
      expect_close(book.distortion, row["D"]);
      if (!row.contains("centroids_positive_half")) continue;
      const auto half = row["centroids_positive_half"].get<std::vector<double>>();
      for (size_t i = 0; i < half.size(); ++i) {
        expect_close(book.levels[half.size() + i], half[i]);
        EXPECT_EQ(book.levels[half.size() - 1 - i], -book.levels[half.size() + i]);
      }
      ++books;
    }
  }
  EXPECT_EQ(books, 4 * 5);
}

TEST(Reference, OneBitBooksHaveTheirClosedForm) {
  for (const int dim : {64, 96, 128, 256}) {
    const double c = std::sqrt(dim / M_PI) * std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0));
    EXPECT_NEAR(lloyd_max_book(dim, 1).levels[1], c, 1e-12);
    EXPECT_NEAR(lloyd_max_book(dim, 1).distortion, 1 - c * c, 1e-12);
  }
}

TEST(Reference, DistortionsLieBetweenThePapersBounds) {
  for (const int dim : {64, 96, 128, 256})
    for (int bits = 1; bits <= 8; ++bits) {
      const double scaled = lloyd_max_book(dim, bits).distortion * std::pow(4.0, bits);
      EXPECT_GT(scaled, 1);
      EXPECT_LT(scaled, std::sqrt(3.0) * M_PI / 2);
    }
}

// What codecs use are the books on integer grids; they lose less than 1 %.
TEST(Reference, GridBooksLoseLittle) {
  for (const int dim : {64, 96, 128, 256})
    for (int bits = 1; bits <= 6; ++bits)
      EXPECT_LT(grid_book(dim, bits).distortion, 1.01 * lloyd_max_book(dim, bits).distortion) << dim << " " << bits;
}

TEST(Reference, SequentialRvqBooksHaveTheirSevenDigits) {
  for (const auto& [dim, rows] : codec_reference()["4_rvq"]["by_dim"].items())
    for (const auto& [name, row] : rows.items()) {
      SCOPED_TRACE(dim + " " + name);
      const auto bits = split_name(name);
      const RvqBooks& books = sequential_rvq_books(std::stoi(dim), std::stoi(bits[0]), std::stoi(bits[1]));
      expect_close(books.distortion, row["D_sequential"]);
      const auto second = row["stage2_codebook"].get<std::vector<double>>();
      ASSERT_EQ(books.second.size(), second.size());
      for (size_t i = 0; i < second.size(); ++i) expect_close(books.second[i], second[i]);
      const int total = std::stoi(bits[0]) + std::stoi(bits[1]);
      expect_close(books.distortion / lloyd_max_book(std::stoi(dim), total).distortion, row["penalty"], 2 * kSevenDigits);
    }
}

// The reference's joint books were found on a grid and are good to three digits; ours may be better, not worse.
TEST(Reference, JointRvqBooksAreAsGood) {
  int books = 0;
  for (const auto& [dim, rows] : codec_reference()["4_rvq"]["by_dim"].items())
    for (const auto& [name, row] : rows.items()) {
      if (!row.contains("D_joint_codebooks")) continue;
      SCOPED_TRACE(dim + " " + name);
      const auto bits = split_name(name);
      const RvqBooks& joint = joint_rvq_books(std::stoi(dim), std::stoi(bits[0]), std::stoi(bits[1]));
      const double theirs = row["D_joint_codebooks"];
      EXPECT_LT(joint.distortion, theirs * 1.0005);
      EXPECT_GT(joint.distortion, theirs * 0.99);
      EXPECT_LT(joint.distortion, row["D_sequential"].get<double>());
      ++books;
    }
  EXPECT_EQ(books, 3 * 4);
}

// 1+1 bits refined together are a Lloyd-Max quantiser of two bits: four levels are two sums and two differences.
TEST(Reference, JointOnePlusOneIsASingleStageOfTwoBits) {
  const RvqBooks& joint = joint_rvq_books(128, 1, 1);
  const Book& single = lloyd_max_book(128, 2);
  EXPECT_NEAR(joint.distortion, single.distortion, 1e-9);
  EXPECT_NEAR(joint.first[1] - joint.second[1], single.levels[2], 1e-4);
  EXPECT_NEAR(joint.first[1] + joint.second[1], single.levels[3], 1e-4);
}

TEST(Reference, BitsPerElementAreTheReferences) {
  const std::map<std::string, std::string> prefixes = {
      {"turboquant_mse_b", "turboquant:"}, {"turboquant_prod_b", "turboquant-prod:"}, {"turboquant_rvq_", "turboquant-rvq:"}};
  int found = 0;
  for (const auto& [name, row] : codec_reference()["5_bits_per_element"]["by_codec"].items())
    for (const int dim : {64, 128, 256}) {
      std::string codec;
      int a = 0, b = 0;
      for (const auto& [prefix, ours] : prefixes)
        if (name.starts_with(prefix)) codec = ours + name.substr(prefix.size());
      if (std::sscanf(name.c_str(), "qjl_m%dd", &a) == 1) codec = "qjl:" + std::to_string(a * dim);
      if (std::sscanf(name.c_str(), "affine_b%d_g%d", &a, &b) == 2) codec = "affine:" + std::to_string(a) + ",group=" + std::to_string(b);
      if (name.starts_with("mxfp")) codec = name;
      if (name.starts_with("kivi")) codec = "affine:2,group=32,axis=channel";
      if (std::sscanf(name.c_str(), "vecinfer_sub%d_cb%d", &a, &b) == 2)
        codec = "vecinfer:" + nlohmann::json(static_cast<double>(b) / a).dump() + ",sub=" + std::to_string(a);
      if (codec.empty()) continue;  // nvfp4
      const double bits = bits_per_element(Spec::parse(codec), Role::keys, dim);
      expect_close(bits, row[std::to_string(dim)]["bits"]);
      expect_close(16 / bits, row[std::to_string(dim)]["vs_fp16"]);
      ++found;
    }
  EXPECT_EQ(found, 31 * 3);
}

TEST(Reference, SplitsHaveTheirTrueAverage) {
  for (const int dim : {64, 128, 256})
    for (const char* bits : {"2.5", "3.5"}) {
      const auto& row = codec_reference()["5_bits_per_element"]["mixed"]["d" + std::to_string(dim) + "_" + bits + "_half_split"];
      const Spec spec = Spec::parse(std::string("turboquant:") + bits);
      expect_close(bits_per_element(spec, Role::keys, dim), row["with_two_fp16_norms"]);
      const Form form = form_of(spec, Role::keys, dim);
      EXPECT_EQ(form.pieces[0], (Piece{0, row["hi_channels"], row["hi_bits"], 0, 0}));
      EXPECT_EQ(form.pieces[1], (Piece{row["hi_channels"], dim - row["hi_channels"].get<int>(), row["lo_bits"], row["hi_channels"], 1}));
      const auto& quarter = codec_reference()["5_bits_per_element"]["mixed"]["d" + std::to_string(dim) + "_paper_example_quarter"];
      expect_close(bits_per_element(Spec::parse("turboquant:2.25"), Role::keys, dim), quarter["with_two_fp16_norms"]);
    }
}

}  // namespace
}  // namespace tersor::codec
