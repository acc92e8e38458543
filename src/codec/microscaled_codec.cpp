// mxfp4 and mxfp8: small floats and a power of two for every 32 channels.
#include <algorithm>

#include "codec/family.h"
#include "codec/levels.h"
#include "codec/microscaling.h"

namespace tersor::codec {
namespace {

class Microscaled final : public Codec {
 public:
  Microscaled(const Spec& spec, Role role, int dim) : Codec(spec, role, dim), wide_(spec.family == Family::mxfp8) {
    for (int code = 0; code < 1 << spec.bits; ++code) table_.levels.push_back(wide_ ? decode_e4m3(code) : decode_e2m1(code));
  }

  const LevelTable* table(int) const override { return &table_; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    const GroupRule rule = spec().rule.value_or(GroupRule::mlx);
    for (int g = 0; g < groups(); ++g) {
      const int begin = g * kMxGroup, end = std::min(begin + kMxGroup, dim());
      float largest = 0;
      for (int i = begin; i < end; ++i) largest = std::max(largest, std::abs(cleaned(x[i])));
      const float scale = decode_exponent(scale_exponent(largest, wide_, rule));
      scalars[g] = scale;
      for (int i = begin; i < end; ++i) {
        const float y = cleaned(x[i]) / scale;
        codes[i] = static_cast<Code>(wide_ ? encode_e4m3(y) : encode_e2m1(y, rule == GroupRule::ocp));
      }
    }
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < dim(); ++i) stored[i] = (wide_ ? decode_e4m3(codes[i]) : decode_e2m1(codes[i])) * scalars[i / kMxGroup];
  }

 private:
  bool wide_;
  LevelTable table_;
};

}  // namespace

CodecPtr make_microscaled(const Spec& spec, Role role, int dim) { return std::make_shared<Microscaled>(spec, role, dim); }

}  // namespace tersor::codec
