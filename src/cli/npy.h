// Arrays of numbers in .npy files: C order, little-endian float16, float32 or float64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace tersor::cli {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Throws Error naming the file and what does not fit, before memory is taken for the numbers.
NpyArray read_npy(const std::filesystem::path& path);
/// Writes float32, so that readers see the whole file or none.
void write_npy(const std::filesystem::path& path, std::span<const int64_t> shape, std::span<const float> values);

}  // namespace tersor::cli
