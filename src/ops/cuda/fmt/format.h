// MLX's headers for CUDA name fmt::format in an inline function that is not called here; its library is not needed for that.
#pragma once

#include <string>

namespace fmt {
template <class... Args>
std::string format(const char* text, const Args&...) {
  return text;
}
}  // namespace fmt
