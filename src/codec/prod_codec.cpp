// TurboQuant-Prod (arXiv 2504.19874, section 3.2): levels of b - 1 bits, and the signs of a sketch of what they leave.
#include <algorithm>

#include "codec/family.h"
#include "codec/levels.h"
#include "codec/rotation.h"
#include "codec/sketch.h"

namespace tersor::codec {
namespace {

// Stored: scalar * levels (dim numbers; absent at 1 bit), then second scalar * signs (dim numbers). The sketch is of the rotated
// remainder, so that M = [R; S R] and N is its transpose.
class Prod final : public Codec {
 public:
  Prod(const Spec& spec, Role role, int dim)
      : Codec(spec, role, dim),
        levels_(spec.bits > 1 ? dim : 0),
        rotation_(dim, spec.rounds, spec.seed),
        sketch_(make_sketch(SketchKind::gaussian, dim, dim, spec.seed)) {
    if (levels_ > 0) table_ = lloyd_max_table(dim, spec.bits - 1);
  }

  const LevelTable* table(int piece) const override { return levels_ > 0 && piece == 0 ? &table_ : &sign_table(); }
  const Rotation* rotation() const override { return &rotation_; }
  double sketch_factor(int piece) const override { return levels_ > 0 && piece == 0 ? 0 : sketch_->factor(); }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<double> rest = cleaned(x);
    rotation_.apply(rest);
    if (levels_ > 0) {
      const double scale = unit_variance(rest);
      for (int i = 0; i < dim(); ++i) codes[i] = nearest(table_.thresholds, static_cast<float>(rest[i] * scale));
      const ScalarRule rule = spec().scalar == ScalarRule::automatic ? ScalarRule::norm : spec().scalar;
      scalars[0] = level_scalar(rule, rest, codes.first(levels_), table_.levels);
      for (int i = 0; i < dim(); ++i) rest[i] -= static_cast<double>(scalars[0]) * table_.levels[codes[i]];
    }
    const double factor = sketch_->encode(rest, codes.subspan(levels_));
    scalars[form().scalars - 1] = decode_norm(encode_norm(static_cast<float>(factor)));
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < levels_; ++i) stored[i] = table_.levels[codes[i]] * scalars[0];
    for (int i = levels_; i < stored_dim(); ++i) stored[i] = codes[i] ? scalars[scalars.size() - 1] : -scalars[scalars.size() - 1];
  }
  void map_query(std::span<const double> q, std::span<double> mapped) const override {
    std::vector<double> rotated(q.begin(), q.end());
    rotation_.apply(rotated);
    std::copy_n(rotated.begin(), levels_, mapped.begin());
    for (int row = 0; row < dim(); ++row) mapped[levels_ + row] = sketch_->product(row, rotated);
  }
  void map_output(std::span<const double> stored, std::span<double> output) const override {
    std::fill(output.begin(), output.end(), 0.0);
    std::copy_n(stored.begin(), levels_, output.begin());
    sketch_->add_transposed(stored.subspan(levels_), output);
    rotation_.inverse(output);
  }

 private:
  int levels_;  // numbers that have levels
  Rotation rotation_;
  std::shared_ptr<const Sketch> sketch_;
  LevelTable table_;
};

}  // namespace

CodecPtr make_prod(const Spec& spec, Role role, int dim) { return std::make_shared<Prod>(spec, role, dim); }

}  // namespace tersor::codec
