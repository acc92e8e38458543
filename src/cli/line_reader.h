// Lines from standard input that Ctrl-C can abandon.
#pragma once

#include <string>

namespace tersor::cli {

class LineReader {
 public:
  enum class Result { line, end, interrupted };
  /// The next line without its newline. `interrupted`: a signal came first, and what was typed so far is dropped.
  Result next(std::string& line);

 private:
  std::string pending_;
  bool ended_ = false;
};

}  // namespace tersor::cli
