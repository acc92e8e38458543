#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace tersor::text {
namespace {

struct Alphabet {
  std::array<std::string, 256> of_byte;
  std::array<int, 0x144> of_char;  // all characters of the alphabet are below U+0144; -1: none

  Alphabet() {
    of_char.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const char32_t value = printable ? static_cast<char32_t>(byte) : next++;
      append_utf8(of_byte[static_cast<size_t>(byte)], value);
      of_char[value] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::string& byte_level_char(uint8_t byte) { return alphabet().of_byte[byte]; }

std::string byte_level_decode(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = first_char(token.substr(at));
    if (!c.valid || c.value >= alphabet().of_char.size() || alphabet().of_char[c.value] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(alphabet().of_char[c.value]));
    at += c.size;
  }
  return bytes;
}

std::string byte_level_encode(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) token += byte_level_char(static_cast<uint8_t>(byte));
  return token;
}

}  // namespace tersor::text
