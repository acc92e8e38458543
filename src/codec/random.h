// Random numbers that are the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>

namespace tersor::codec {

inline uint64_t split_mix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// In [0, 1).
inline double uniform(uint64_t& state) { return static_cast<double>(split_mix(state) >> 11) * 0x1p-53; }

/// Standard normal, by Box and Muller.
inline double normal(uint64_t& state) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(state)));
  return radius * std::cos(2 * M_PI * uniform(state));
}

}  // namespace tersor::codec
