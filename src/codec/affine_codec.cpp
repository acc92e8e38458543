// Scale and bias for a group of channels of one token, or of tokens of one channel.
#include <algorithm>

#include "codec/affine.h"
#include "codec/family.h"
#include "codec/levels.h"

namespace tersor::codec {
namespace {

class TokenAffine final : public Codec {
 public:
  TokenAffine(const Spec& spec, Role role, int dim) : Codec(spec, role, dim) {}

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    std::vector<float> clean(x.size());
    std::transform(x.begin(), x.end(), clean.begin(), [](float v) { return cleaned(v); });
    const GroupRule rule = spec().rule.value_or(GroupRule::mlx);
    for (int g = 0; g < groups(); ++g) {
      const size_t begin = static_cast<size_t>(g) * spec().group, end = std::min<size_t>(begin + spec().group, dim());
      const auto [low, high] = std::minmax_element(clean.begin() + begin, clean.begin() + end);
      const Affine affine = affine_by_rule(rule, *low, *high, spec().bits);
      scalars[g] = affine.scale, scalars[groups() + g] = affine.bias;
      for (size_t i = begin; i < end; ++i) codes[i] = affine.code(clean[i], spec().bits);
    }
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (int i = 0; i < dim(); ++i) stored[i] = codes[i] * scalars[i / spec().group] + scalars[groups() + i / spec().group];
  }
};

// Scalars: dim scales, then dim biases.
class ChannelAffine final : public Codec {
 public:
  ChannelAffine(const Spec& spec, Role role, int dim) : Codec(spec, role, dim) {}

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const override {
    const GroupRule rule = spec().rule.value_or(GroupRule::minmax);
    for (int d = 0; d < dim(); ++d) {
      float low = kInputMax, high = -kInputMax;
      for (size_t i = d; i < x.size(); i += dim()) low = std::min(low, cleaned(x[i])), high = std::max(high, cleaned(x[i]));
      const Affine affine = affine_by_rule(rule, low, high, spec().bits);
      scalars[d] = affine.scale, scalars[dim() + d] = affine.bias;
      for (size_t i = d; i < x.size(); i += dim()) codes[i] = affine.code(cleaned(x[i]), spec().bits);
    }
  }
  void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const override {
    for (size_t i = 0; i < stored.size(); ++i) {
      const size_t d = i % static_cast<size_t>(dim());
      stored[i] = codes[i] * scalars[d] + scalars[dim() + d];
    }
  }
};

}  // namespace

CodecPtr make_affine(const Spec& spec, Role role, int dim) { return std::make_shared<TokenAffine>(spec, role, dim); }
CodecPtr make_channel_affine(const Spec& spec, Role role, int dim) { return std::make_shared<ChannelAffine>(spec, role, dim); }

}  // namespace tersor::codec
