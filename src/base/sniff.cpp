#include "base/sniff.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>

namespace tersor {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    if (!text.empty()) text += ' ';
    text += digits[std::to_integer<int>(b) >> 4];
    text += digits[std::to_integer<int>(b) & 15];
  }
  return text;
}

// The start of the file, white space and a UTF-8 mark skipped, in lower case.
std::string text_start(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes.first(std::min<size_t>(bytes.size(), 256)))
    text += static_cast<char>(std::tolower(std::to_integer<int>(b)));
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  return text;
}

bool is_safetensors(std::span<const std::byte> bytes) {
  if (bytes.size() < 9 || bytes[8] != std::byte{'{'}) return false;
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header <= bytes.size() - 8;
}

}  // namespace

std::string describe_content(std::span<const std::byte> bytes) {
  if (bytes.empty()) return "an empty file; fetch it again";
  const std::string text = text_start(bytes);
  if (text.starts_with("<!doctype") || text.starts_with("<html")) return "an HTML page (a failed download?); fetch the model file itself";
  if (text.starts_with("version https://git-lfs")) return "a git-lfs pointer; run \"git lfs pull\" to fetch the content";
  if (text.starts_with("pk\x03\x04")) return "a zip archive (a PyTorch checkpoint?); convert it to safetensors or GGUF";
  if (bytes.size() > 1 && bytes[0] == std::byte{0x80} && bytes[1] <= std::byte{5})
    return "a Python pickle; convert it to safetensors or GGUF";
  if (bytes.size() > 1 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b}) return "gzip data; unpack it first";
  if (text.starts_with("ggjt") || text.starts_with("tjgg") || text.starts_with("lmgg") || text.starts_with("fmgg"))
    return "a GGML file of before GGUF; convert it again with today's llama.cpp";
  if (text.starts_with("fugg")) return "a GGUF file in the wrong byte order; convert it to little-endian";
  if (is_safetensors(bytes)) return "a safetensors file; give the folder that holds it and config.json";
  if (text.starts_with("{")) return "JSON; give the folder with config.json and *.safetensors";
  return "none of the known formats (it begins with bytes " + hex(bytes.first(std::min<size_t>(bytes.size(), 4))) + ")";
}

std::string printable(std::string_view text, size_t limit) {
  std::string result;
  for (const char c : text.substr(0, limit)) result += c >= 32 && c < 127 ? c : '?';
  if (text.size() > limit) result += "...";
  return result;
}

std::string in_quotes(std::string_view text) {
  std::string result(1, '"');
  result += printable(text);
  result += '"';
  return result;
}

}  // namespace tersor
