// Safetensors files with a header that lies.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace tersor::cache {

/// Replaces text in the JSON header by text of any length.
inline std::string with(std::string bytes, const std::string& from, const std::string& to) {
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  std::string header = bytes.substr(8, size);
  const size_t at = header.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  header.replace(at, from.size(), to);
  const uint64_t changed = header.size();
  bytes.replace(8, size, header);
  std::memcpy(bytes.data(), &changed, 8);
  return bytes;
}

}  // namespace tersor::cache
