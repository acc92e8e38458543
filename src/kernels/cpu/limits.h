// What this machine can do at most, for benchmarks that state fractions of it. Each routine runs on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Reads `bytes` (a multiple of 512) from a 64-byte aligned address once, in order, and returns a number that depends on all of it.
uint64_t read_once(const void* data, size_t bytes);

/// Runs multiply-adds on registers and returns how many floating-point operations that were: 2 for each multiply-add of a lane.
/// `sink` keeps the compiler from leaving them out.
double float_operations(size_t rounds, float* sink);

/// The same for the integer products of linear_packed.h: operations on 16-bit activations, 2 for each code met by one activation.
double integer_operations(size_t rounds, int32_t* sink);

}  // namespace tersor::kernels
