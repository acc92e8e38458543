// TurboQuant (arXiv 2504.19874): rotate, take the nearest level of every coordinate, keep one scalar. And the same over two channel sets.
#include <algorithm>

#include "codec/family.h"
#include "codec/levels.h"
#include "codec/rotation.h"
#include "codec/split.h"

namespace tersor::codec {
namespace {

void quantise(std::span<const double> y, const LevelTable& table, std::span<Code> codes) {
  const double scale = unit_variance(y);
  for (size_t i = 0; i < y.size(); ++i) codes[i] = nearest(table.thresholds, static_cast<float>(y[i] * scale));
}

class TurboQuant final : public Codec {
 public:
  TurboQuant(const Spec& spec, Role role, int dim)
      : Codec(spec, role, dim), rotation_(dim, spec.rounds, spec.seed), table_(lloyd_max_table(dim, spec.bits)) {}

  const LevelTable* table(int) const override { return &table_; }
  const Rotation* rotation() const override { return &rotation_; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<double> y = cleaned(x);
    rotation_.apply(y);
    quantise(y, table_, codes);
    scalars[0] = level_scalar(resolved(spec().scalar, role()), y, codes, table_.levels);
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < dim(); ++i) stored[i] = table_.levels[codes[i]] * scalars[0];
  }

 private:
  Rotation rotation_;
  LevelTable table_;
};

// Two codecs over the channels of larger and of smaller RMS: stored are the first's numbers, then the second's.
class Split final : public Codec {
 public:
  Split(const Spec& spec, Role role, int dim, const Calibration& calibration) : Codec(spec, role, dim), channels_(calibration.channels) {
    Spec part;
    part.family = Family::turboquant;
    part.rounds = spec.rounds, part.seed = spec.seed, part.scalar = spec.scalar;
    part.bits = spec.bits2;
    parts_[0] = std::make_unique<TurboQuant>(part, role, form().pieces[0].count);
    part.bits = spec.bits, part.seed = ~spec.seed;
    parts_[1] = std::make_unique<TurboQuant>(part, role, form().pieces[1].count);
  }

  const LevelTable* table(int piece) const override { return parts_[piece]->table(0); }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<float> ordered(x.size());
    for (size_t i = 0; i < x.size(); ++i) ordered[i] = x[channels_[i]];
    for (int p = 0; p < 2; ++p) parts_[p]->encode(of(p, std::span<const float>(ordered)), of(p, codes), scalars.subspan(p, 1));
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int p = 0; p < 2; ++p) parts_[p]->decode(of(p, codes), scalars.subspan(p, 1), of(p, stored));
  }
  void map_query(std::span<const double> q, std::span<double> mapped) const override {
    for (size_t i = 0; i < q.size(); ++i) mapped[i] = q[channels_[i]];
    for (int p = 0; p < 2; ++p) parts_[p]->rotation()->apply(of(p, mapped));
  }
  void map_output(std::span<const double> stored, std::span<double> output) const override {
    std::vector<double> ordered(stored.begin(), stored.end());
    for (int p = 0; p < 2; ++p) parts_[p]->rotation()->inverse(of(p, std::span<double>(ordered)));
    for (size_t i = 0; i < ordered.size(); ++i) output[channels_[i]] = ordered[i];
  }

 private:
  template <class T>
  std::span<T> of(int part, std::span<T> all) const {
    return all.subspan(form().pieces[part].first, form().pieces[part].count);
  }
  std::vector<int> channels_;
  std::unique_ptr<TurboQuant> parts_[2];
};

}  // namespace

CodecPtr make_turboquant(const Spec& spec, Role role, int dim) { return std::make_shared<TurboQuant>(spec, role, dim); }
CodecPtr make_split(const Spec& spec, Role role, int dim, const Calibration& calibration) {
  return std::make_shared<Split>(spec, role, dim, calibration);
}

}  // namespace tersor::codec
