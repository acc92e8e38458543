#include "text/utf8.h"

#include <algorithm>
#include <cstdio>

#include "tersor/text.h"

namespace tersor::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Python also strips the four information separators.
bool is_python_space(char32_t value) { return is_white_space(value) || (value >= 0x1c && value <= 0x1f); }

// Start of the last character of a valid, non-empty text.
size_t last_char_start(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

template <class Is>
size_t leading(std::string_view text, Is is) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Char c = first_char(text.substr(at));
    if (!c.valid || !is(c.value)) break;
    at += c.size;
  }
  return at;
}

template <class Is>
size_t trailing(std::string_view text, Is is) {
  size_t end = text.size();
  while (end > 0) {
    const size_t start = last_char_start(text.substr(0, end));
    const Utf8Char c = first_char(text.substr(start, end - start));
    if (!c.valid || !is(c.value)) break;
    end = start;
  }
  return text.size() - end;
}

}  // namespace

Utf8Char first_char(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  const int length = lead >= 0xc2 && lead <= 0xdf ? 2 : lead >= 0xe0 && lead <= 0xef ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (length == 0) return {0, 1, false, false};
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  char32_t value = lead & (0x7f >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {0, static_cast<uint8_t>(i), false, true};
    const uint8_t next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {0, static_cast<uint8_t>(i), false, false};
    value = value << 6 | (next & 0x3f);
    low = 0x80, high = 0xbf;
  }
  return {value, static_cast<uint8_t>(length), true, false};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = first_char(text.substr(at));
    if (!c.valid) return at;
    at += c.size;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, char32_t value) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xc0 | value >> 6);
  } else {
    if (value < 0x10000) {
      put(0xe0 | value >> 12);
    } else {
      put(0xf0 | value >> 18);
      put(0x80 | (value >> 12 & 0x3f));
    }
    put(0x80 | (value >> 6 & 0x3f));
  }
  put(0x80 | (value & 0x3f));
}

bool is_white_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0d) || value == 0x20 || value == 0x85 || value == 0xa0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 || value == 0x202f || value == 0x205f ||
         value == 0x3000;
}

size_t leading_white_space(std::string_view text) { return leading(text, is_white_space); }
size_t trailing_white_space(std::string_view text) { return trailing(text, is_white_space); }

std::string_view python_strip(std::string_view text) {
  text.remove_prefix(leading(text, is_python_space));
  text.remove_suffix(trailing(text, is_python_space));
  return text;
}

std::string show(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out = "\"";
  for (const char c : replace_invalid_utf8(text.substr(0, kMost))) {
    const auto byte = static_cast<uint8_t>(c);
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
    if (byte < 0x20 || byte == 0x7f)
      out += escaped;
    else
      out.push_back(c);
  }
  return out + (text.size() > kMost ? "...\"" : "\"");
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = first_char(bytes.substr(at));
    out += c.valid ? bytes.substr(at, c.size) : kReplacement;
    at += c.size;
  }
  return out;
}

std::string StreamDecoder::push(int32_t id) {
  const int32_t one[] = {id};
  pending_ += tokenizer_->decode(one, with_special_);
  // Everything but a last character that may still be completed is given out.
  size_t whole = pending_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
    if (first_char(std::string_view(pending_).substr(pending_.size() - back)).truncated) whole = pending_.size() - back;
  }
  std::string out = replace_invalid_utf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = replace_invalid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace tersor::text
