#include "model/weight_type.h"

#include "tersor/codec.h"

namespace tersor::model {

WeightType WeightType::parse(std::string_view text) {
  WeightType type;
  if (text == "bf16" || text == "f16" || text == "f32") return type.dtype = parse_dtype(text), type;
  for (const Coding coding : {Coding::mxfp4, Coding::mxfp8})
    if (text == name_of(coding)) return type.bits = coding == Coding::mxfp4 ? 4 : 8, type.group = 32, type.coding = coding, type;
  const std::string advice = std::string(": give ") + kNames + "; affine takes 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128";
  if (!text.starts_with("affine:")) throw Error("the weight format \"" + std::string(text) + "\" is unknown" + advice);
  const codec::Spec spec = codec::Spec::parse(text);
  if (spec.bits < 2 || spec.bits > 8 || spec.bits == 7 || (spec.group != 32 && spec.group != 64 && spec.group != 128))
    throw Error("the weight format \"" + std::string(text) + "\" is not supported" + advice);
  type.bits = spec.bits, type.group = spec.group;
  return type;
}

std::string WeightType::str() const {
  if (!bits) return std::string(name_of(dtype));
  if (coding != Coding::affine) return std::string(name_of(coding));
  return "affine:" + std::to_string(bits) + ",group=" + std::to_string(group);
}

void WeightType::require_fit(int in) const {
  if (bits && in % group)
    throw Error("weights of " + str() + ": groups of " + std::to_string(group) + " do not divide rows of " + std::to_string(in) +
                (coding == Coding::affine ? "; use smaller groups" : "; use another format"));
}

uint64_t WeightType::bytes(int out, int in) const {
  const uint64_t numbers = static_cast<uint64_t>(out) * static_cast<uint64_t>(in);
  if (!bits) return numbers * size_of(dtype);
  const uint64_t of_group = coding == Coding::affine ? 2 * size_of(dtype) : 1;
  return numbers * static_cast<uint64_t>(bits) / 8 + of_group * numbers / static_cast<uint64_t>(group);
}

}  // namespace tersor::model
