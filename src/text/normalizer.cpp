#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tersor/base.h"

namespace tersor::text {

std::string to_nfc(std::string_view text) {
  // Everything below U+0300 is in normal form already; 0xcc is the first byte of U+0300.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xcc; })) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &raw, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(raw, &std::free);
  if (size < 0) throw Error(std::string("the text cannot be brought to normal form C: ") + utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

}  // namespace tersor::text
