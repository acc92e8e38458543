// A small fingerprint of data: finds damage and mix-ups, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tersor {

/// FNV-1a, 64 bits.
class Digest {
 public:
  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) state_ = (state_ ^ bytes[i]) * 0x100000001b3u;
  }
  /// A text and its end, so that ("ab", "c") differs from ("a", "bc").
  void add(std::string_view text) {
    add(text.data(), text.size());
    add("", 1);
  }
  std::string str() const {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[state_ >> shift & 15];
    return text;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace tersor
