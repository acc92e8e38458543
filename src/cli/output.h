// Everything the program prints: checked writes to standard output, JSON, tables, and progress on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::cli {

/// Keeps the order in which fields are added.
using Json = nlohmann::ordered_json;

/// Thrown when the reader of standard output has gone; main ends quietly.
struct ClosedPipe {};

/// Writes to standard output and hands it on at once. Throws ClosedPipe or Error when that fails.
void print(std::string_view text);
void print_json(const Json& json);
/// One object on one line, for commands that print several.
void print_json_line(const Json& json);
/// One line on standard error.
void note(const std::string& line);

/// "12.3"
std::string fixed(double value, int digits);
/// Three significant digits or so: "0.000123", "12.3".
std::string brief(double value);
/// Columns padded to one width each: of numbers, all but the first to the right; or of words, all to the left.
using Rows = std::vector<std::vector<std::string>>;
std::string table(const Rows& rows);
std::string columns(const Rows& rows);

/// One line on standard error that is rewritten in place, only on a terminal; gone when this object is.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// total 0: the label alone.
  void update(int64_t done, int64_t total);
  void relabel(std::string label);
  void clear();

 private:
  std::string label_;
  bool terminal_, shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tersor::cli
