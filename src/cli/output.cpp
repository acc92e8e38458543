#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tersor/base.h"

namespace tersor::cli {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(100);

// Terminal columns of UTF-8 text: its characters, which is right for everything the tables hold.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const Rows& rows, bool right) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width_of(row[i]), ' ');
      line += (i ? "  " : "") + (i && right ? space + row[i] : row[i] + space);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw ClosedPipe{};
    if (written < 0) throw Error(std::string("standard output: cannot be written: ") + std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void print_json(const Json& json) { print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }
void print_json_line(const Json& json) { print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }

void note(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string brief(double value) {
  if (value == 0 || !std::isfinite(value)) return fixed(value, 0);
  const int digits = 2 - static_cast<int>(std::floor(std::log10(std::fabs(value))));
  return fixed(value, std::clamp(digits, 0, 9));
}

std::string table(const Rows& rows) { return padded(rows, true); }
std::string columns(const Rows& rows) { return padded(rows, false); }

Progress::Progress(std::string label) : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO)) { update(0, 0); }

void Progress::relabel(std::string label) {
  label_ = std::move(label);
  next_ = {};
  update(0, 0);
}

void Progress::update(int64_t done, int64_t total) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kProgressInterval;
  shown_ = true;
  if (total <= 0) {
    std::fprintf(stderr, "\r\033[K%s...", label_.c_str());
  } else {
    std::fprintf(stderr, "\r\033[K%s %lld/%lld (%d%%)", label_.c_str(), static_cast<long long>(done), static_cast<long long>(total),
                 static_cast<int>(100 * done / total));
  }
  std::fflush(stderr);
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr), std::fflush(stderr);
  shown_ = false;
}

}  // namespace tersor::cli
