// Two-stage scalar quantisation of rotated coordinates: each is the sum of a level of stage 1 and one of stage 2.
#include <algorithm>
#include <utility>

#include "codec/family.h"
#include "codec/levels.h"
#include "codec/rotation.h"
#include "codec/rvq_books.h"

namespace tersor::codec {
namespace {

// A coordinate has two codes, one a stage; decoding reads the first `stages` of them.
class Rvq final : public Codec {
 public:
  Rvq(const Spec& spec, Role role, int dim)
      : Codec(spec, role, dim),
        rotation_(dim, spec.rounds, spec.seed),
        books_(spec.joint ? joint_rvq_books(dim, spec.bits, spec.bits2) : sequential_rvq_books(dim, spec.bits, spec.bits2)),
        tables_{table_on_grid(books_.first, spec.bits), table_on_grid(books_.second, spec.bits2)} {
    order_sums();
  }

  const LevelTable* table(int piece) const override { return &tables_[piece]; }
  const Rotation* rotation() const override { return &rotation_; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<double> y = cleaned(x);
    rotation_.apply(y);
    const double scale = unit_variance(y);
    const auto size = static_cast<size_t>(dim());
    std::vector<Code> read(size);
    for (size_t i = 0; i < size; ++i) {
      const auto [first, second] = spec().joint ? nearest_sum(y[i] * scale) : in_stages(y[i] * scale);
      codes[i] = first, codes[size + i] = second;
      read[i] = static_cast<Code>(first << spec().bits2 | second);
    }
    scalars[0] = level_scalar(resolved(spec().scalar, role()), y, read, read_sums_);
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    const auto size = static_cast<size_t>(dim());
    for (size_t i = 0; i < size; ++i)
      stored[i] = (tables_[0].levels[codes[i]] + (spec().stages == 2 ? tables_[1].levels[codes[size + i]] : 0.0f)) * scalars[0];
  }
  void map_query(std::span<const double> q, std::span<double> mapped) const override {
    std::copy(q.begin(), q.end(), mapped.begin());
    rotation_.apply(mapped);
  }
  void map_output(std::span<const double> stored, std::span<double> output) const override {
    std::copy(stored.begin(), stored.end(), output.begin());
    rotation_.inverse(output);
  }

 private:
  using Pair = std::pair<Code, Code>;

  // All pairs by rising sum, the borders between them, and what decoding makes of each pair.
  void order_sums() {
    std::vector<std::pair<double, Pair>> sums;
    for (size_t first = 0; first < books_.first.size(); ++first)
      for (size_t second = 0; second < books_.second.size(); ++second) {
        sums.push_back({books_.first[first] + books_.second[second], {static_cast<Code>(first), static_cast<Code>(second)}});
        read_sums_.push_back(tables_[0].levels[first] + (spec().stages == 2 ? tables_[1].levels[second] : 0.0f));
      }
    std::sort(sums.begin(), sums.end());
    for (size_t i = 0; i < sums.size(); ++i) {
      rising_.push_back(sums[i].second);
      if (i > 0) borders_.push_back((sums[i - 1].first + sums[i].first) / 2);
    }
  }
  static Code nearest_in(const std::vector<double>& levels, double y) {
    size_t best = 0;
    while (best + 1 < levels.size() && y > (levels[best] + levels[best + 1]) / 2) ++best;
    return static_cast<Code>(best);
  }
  Pair in_stages(double y) const {
    const Code first = nearest_in(books_.first, y);
    return {first, nearest_in(books_.second, y - books_.first[first])};
  }
  Pair nearest_sum(double y) const {
    return rising_[static_cast<size_t>(std::lower_bound(borders_.begin(), borders_.end(), y) - borders_.begin())];
  }

  Rotation rotation_;
  const RvqBooks& books_;
  LevelTable tables_[2];
  std::vector<float> read_sums_;  // [first][second]
  std::vector<Pair> rising_;      // by their sum
  std::vector<double> borders_;
};

}  // namespace

CodecPtr make_rvq(const Spec& spec, Role role, int dim) { return std::make_shared<Rvq>(spec, role, dim); }

}  // namespace tersor::codec
