// The byte-level alphabet of GPT-2: every byte is written as one printable character, so that a vocabulary is plain text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tersor::text {

/// The character (as UTF-8) that stands for a byte: itself where it is printable in Latin-1, else U+0100, U+0101, ... in order.
const std::string& byte_level_char(uint8_t byte);

/// The bytes that a token's text stands for; text with any character outside the alphabet stands for itself.
std::string byte_level_decode(std::string_view token);

/// The text of bytes in the alphabet.
std::string byte_level_encode(std::string_view bytes);

}  // namespace tersor::text
