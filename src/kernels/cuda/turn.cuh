// The angle of a rotary embedding.
#pragma once

#include <cstdint>

namespace tersor::kernels::cuda {

/// Cosine and sine of position * frequency. The product is formed exactly, as a float and its error, and reduced by whole turns in
/// double, so that angles hold at any position; what is left is small enough for the fast functions (5e-7).
__device__ __forceinline__ float2 turn_of(int64_t position, float frequency, float scale) {
  constexpr double kTurn = 6.283185307179586476925;
  const double angle = static_cast<double>(position) * frequency, turns = rint(angle * (1 / kTurn));
  float s, c;
  __sincosf(static_cast<float>(fma(-turns, kTurn, angle)), &s, &c);
  return make_float2(c * scale, s * scale);
}

}  // namespace tersor::kernels::cuda
