// Unicode normal form C.
#pragma once

#include <string>
#include <string_view>

namespace tersor::text {

/// `text` is valid UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace tersor::text
