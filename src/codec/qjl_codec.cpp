// QJL (arXiv 2406.03482): signs of a random sketch and the norm; inner products are unbiased.
#include "codec/qjl.h"

#include <algorithm>
#include <utility>

#include "codec/family.h"
#include "codec/levels.h"
#include "codec/sketch.h"

namespace tersor::codec {
namespace {

// Stored: scalar * signs of S x (sketch_rows numbers), then, with outliers, second scalar * signs of S' x'. x' are the channels of largest
// RMS, and x is zero there.
class Qjl final : public Codec {
 public:
  Qjl(const Spec& spec, Role role, int dim, const Calibration* calibration)
      : Codec(spec, role, dim), sketch_(make_sketch(spec.sketch, spec.sketch_rows, dim, spec.seed)) {
    if (spec.outliers == 0) return;
    outliers_.assign(calibration->channels.begin(), calibration->channels.begin() + spec.outliers);
    outlier_sketch_ = make_sketch(spec.sketch, qjl_outlier_rows(spec), spec.outliers, ~spec.seed);
  }

  const LevelTable* table(int) const override { return &sign_table(); }
  double sketch_factor(int piece) const override { return (piece == 0 ? sketch_ : outlier_sketch_)->factor(); }
  std::span<const int> outliers() const override { return outliers_; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<double> rest = cleaned(x);
    const std::vector<double> apart = take_outliers(rest);
    const auto stored = [](double factor) { return decode_norm(encode_norm(static_cast<float>(factor))); };
    scalars[0] = stored(sketch_->encode(rest, codes.first(sketch_->rows)));
    if (outlier_sketch_) scalars[1] = stored(outlier_sketch_->encode(apart, codes.subspan(sketch_->rows)));
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < stored_dim(); ++i) {
      const float scalar = scalars[i < sketch_->rows ? 0 : 1];
      stored[i] = codes[i] ? scalar : -scalar;
    }
  }
  void map_query(std::span<const double> q, std::span<double> mapped) const override {
    std::vector<double> rest(q.begin(), q.end());
    const std::vector<double> apart = take_outliers(rest);
    for (int row = 0; row < sketch_->rows; ++row) mapped[row] = sketch_->product(row, rest);
    for (int row = 0; row < stored_dim() - sketch_->rows; ++row) mapped[sketch_->rows + row] = outlier_sketch_->product(row, apart);
  }
  void map_output(std::span<const double> stored, std::span<double> output) const override {
    std::fill(output.begin(), output.end(), 0.0);
    sketch_->add_transposed(stored.first(sketch_->rows), output);
    if (!outlier_sketch_) return;
    std::vector<double> apart(outliers_.size(), 0.0);
    outlier_sketch_->add_transposed(stored.subspan(sketch_->rows), apart);
    for (size_t i = 0; i < outliers_.size(); ++i) output[outliers_[i]] = apart[i];
  }

 private:
  // Moves the outlier channels out of x.
  std::vector<double> take_outliers(std::vector<double>& x) const {
    std::vector<double> apart;
    for (const int channel : outliers_) apart.push_back(std::exchange(x[channel], 0.0));
    return apart;
  }

  std::shared_ptr<const Sketch> sketch_, outlier_sketch_;
  std::vector<int> outliers_;
};

}  // namespace

CodecPtr make_qjl(const Spec& spec, Role role, int dim, const Calibration* calibration) {
  return std::make_shared<Qjl>(spec, role, dim, calibration);
}

}  // namespace tersor::codec
