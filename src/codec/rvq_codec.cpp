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
  Rvq(const Spec& spec, Role role, int dim) : Codec(spec, role, dim), rotation_(dim, spec.rounds, spec.seed), tables_{} {
    const RvqBooks& books = spec.joint ? joint_rvq_books(dim, spec.bits, spec.bits2) : sequential_rvq_books(dim, spec.bits, spec.bits2);
    tables_[0] = table_on_grid(books.first, spec.bits), tables_[1] = table_on_grid(books.second, spec.bits2);
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
      const auto unit = static_cast<float>(y[i] * scale);
      const auto [first, second] = spec().joint ? nearest_sum(unit) : in_stages(unit);
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

 private:
  using Pair = std::pair<Code, Code>;

  // All pairs by rising sum, the borders between them, and what decoding makes of each pair.
  void order_sums() {
    std::vector<std::pair<float, Pair>> sums;
    for (size_t first = 0; first < tables_[0].levels.size(); ++first)
      for (size_t second = 0; second < tables_[1].levels.size(); ++second) {
        const float one = tables_[0].levels[first], two = tables_[1].levels[second];
        sums.push_back({one + two, {static_cast<Code>(first), static_cast<Code>(second)}});
        read_sums_.push_back(spec().stages == 2 ? one + two : one);
      }
    std::sort(sums.begin(), sums.end());
    for (size_t i = 0; i < sums.size(); ++i) {
      rising_.push_back(sums[i].second);
      if (i > 0) borders_.push_back((sums[i - 1].first + sums[i].first) / 2);
    }
  }
  // Stage 2 sees what stage 1 leaves on the grid, so that rounding to the grid costs nothing twice.
  Pair in_stages(float y) const {
    const Code first = nearest(tables_[0].thresholds, y);
    return {first, nearest(tables_[1].thresholds, y - tables_[0].levels[first])};
  }
  Pair nearest_sum(float y) const {
    return rising_[static_cast<size_t>(std::lower_bound(borders_.begin(), borders_.end(), y) - borders_.begin())];
  }

  Rotation rotation_;
  LevelTable tables_[2];
  std::vector<float> read_sums_;  // [first][second]
  std::vector<Pair> rising_;      // by their sum
  std::vector<float> borders_;
};

}  // namespace

CodecPtr make_rvq(const Spec& spec, Role role, int dim) { return std::make_shared<Rvq>(spec, role, dim); }

}  // namespace tersor::codec
