// Two-stage scalar quantisation of rotated coordinates: each is the sum of a level of stage 1 and one of stage 2.
#include <algorithm>

#include "codec/books.h"
#include "codec/family.h"
#include "codec/levels.h"
#include "codec/rotation.h"
#include "codec/rvq_books.h"

namespace tersor::codec {
namespace {

// A code's low bits are the index of stage 1. Decoding is one table of sums, or of stage 1 alone.
class Rvq final : public Codec {
 public:
  Rvq(const Spec& spec, Role role, int dim)
      : Codec(spec, role, dim),
        rotation_(dim, spec.rounds, spec.seed),
        books_(spec.joint ? joint_rvq_books(dim, spec.bits, spec.bits2) : sequential_rvq_books(dim, spec.bits, spec.bits2)) {
    const std::vector<double> sums = all_sums();
    fill_table(sums);
    order_codes(sums);
  }

  const LevelTable* table(int) const override { return &table_; }
  const Rotation* rotation() const override { return &rotation_; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<double> y = cleaned(x);
    rotation_.apply(y);
    const double scale = unit_variance(y);
    for (int i = 0; i < dim(); ++i) codes[i] = spec().joint ? nearest_sum(y[i] * scale) : in_stages(y[i] * scale);
    scalars[0] = level_scalar(resolved(spec().scalar, role()), y, codes, table_.levels);
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < dim(); ++i) stored[i] = table_.levels[codes[i]] * scalars[0];
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
  std::vector<double> all_sums() const {
    std::vector<double> sums;
    for (const double second : books_.second)
      for (const double first : books_.first) sums.push_back(first + second);
    return sums;
  }
  // The levels that are read, on the grid that integer kernels take.
  void fill_table(const std::vector<double>& sums) {
    const int top = grid_max(spec().bits + spec().bits2);
    std::vector<double> read = sums;
    if (spec().stages == 1)
      for (size_t code = 0; code < read.size(); ++code) read[code] = books_.first[code % books_.first.size()];
    const double step = *std::max_element(read.begin(), read.end()) / top;
    table_.step = static_cast<float>(step);
    for (const double level : read) {
      const long half = std::lround((std::abs(level) / step - 1) / 2);
      table_.grid.push_back(static_cast<int16_t>(level < 0 ? -(2 * half + 1) : 2 * half + 1));
      table_.levels.push_back(static_cast<float>(table_.grid.back() * step));
    }
  }
  void order_codes(const std::vector<double>& sums) {
    for (size_t code = 0; code < sums.size(); ++code) rising_.push_back(static_cast<Code>(code));
    std::sort(rising_.begin(), rising_.end(), [&](Code a, Code b) { return sums[a] < sums[b]; });
    for (size_t i = 1; i < sums.size(); ++i) borders_.push_back((sums[rising_[i - 1]] + sums[rising_[i]]) / 2);
  }
  static size_t nearest_in(const std::vector<double>& levels, double y) {
    size_t best = 0;
    while (best + 1 < levels.size() && y > (levels[best] + levels[best + 1]) / 2) ++best;
    return best;
  }
  Code in_stages(double y) const {
    const size_t first = nearest_in(books_.first, y), second = nearest_in(books_.second, y - books_.first[first]);
    return static_cast<Code>(first | second << spec().bits);
  }
  Code nearest_sum(double y) const {
    return rising_[static_cast<size_t>(std::lower_bound(borders_.begin(), borders_.end(), y) - borders_.begin())];
  }

  Rotation rotation_;
  const RvqBooks& books_;
  LevelTable table_;
  std::vector<Code> rising_;  // codes by rising sum
  std::vector<double> borders_;
};

}  // namespace

CodecPtr make_rvq(const Spec& spec, Role role, int dim) { return std::make_shared<Rvq>(spec, role, dim); }

}  // namespace tersor::codec
