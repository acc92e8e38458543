#include "model/stop_scanner.h"

#include <algorithm>

#include "tersor/base.h"

namespace tersor::model {
namespace {

// Length of the longest end of `text` that is a beginning of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  return 0;
}

}  // namespace

StopScanner::StopScanner(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const auto& stop : stops_) {
    if (stop.empty()) throw Error("a stop string is empty: give at least one character");
    if ((static_cast<unsigned char>(stop.front()) & 0xc0) == 0x80) throw Error("a stop string is not valid UTF-8: give whole characters");
  }
}

std::string StopScanner::push(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  size_t first = std::string::npos, hold = 0;
  for (const auto& stop : stops_) {
    first = std::min(first, held_.find(stop));
    hold = std::max(hold, overlap(held_, stop));
  }
  found_ = first != std::string::npos;
  std::string out = held_.substr(0, found_ ? first : held_.size() - hold);
  held_ = found_ ? std::string() : held_.substr(held_.size() - hold);
  return out;
}

std::string StopScanner::finish() {
  std::string out;
  out.swap(held_);
  return out;
}

}  // namespace tersor::model
