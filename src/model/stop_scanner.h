// Finds stop strings in text that arrives in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tersor::model {

class StopScanner {
 public:
  /// Throws Error for an empty stop string and for one that begins in the middle of a UTF-8 character.
  explicit StopScanner(std::vector<std::string> stops);

  /// Takes whole characters and returns the text that is now certain to come before any stop string. What could still
  /// become one is held back. After a stop string was found nothing more comes out.
  std::string push(std::string_view piece);
  /// The text is over: what was held back.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace tersor::model
