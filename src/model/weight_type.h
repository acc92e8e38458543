// How weight matrices are stored, named by a short string as reports and command lines have it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tersor/base.h"

namespace tersor::model {

struct WeightType {
  int bits = 0, group = 0;         // of codes as MLX packs them; 0: dense
  Coding coding = Coding::affine;  // of codes
  Dtype dtype = Dtype::bf16;       // of dense weights, and of affine scales and biases

  /// What parse() takes, for help texts.
  static constexpr const char* kNames = "affine:BITS[,group=SIZE], mxfp4, mxfp8, f16, bf16 or f32";
  /// "affine:4,group=64", "affine:8", "mxfp4", "mxfp8", "bf16", "f16" or "f32". Throws Error for anything else.
  static WeightType parse(std::string_view text);
  std::string str() const;
  /// Throws Error when groups do not divide rows of `in` numbers.
  void require_fit(int in) const;
  /// Bytes of a matrix [out, in].
  uint64_t bytes(int out, int in) const;
};

}  // namespace tersor::model
