#include "cli/input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/interrupt.h"
#include "tersor/base.h"
#include "text/utf8.h"

namespace tersor::cli {
namespace {

constexpr size_t kMostInput = size_t{1} << 30;  // as read_file

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    throw_if_interrupted();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(std::string("standard input: cannot be read: ") + std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMostInput) throw Error("standard input: has more than " + human_bytes(kMostInput) + "; give a shorter text");
  }
}

}  // namespace

void require_exists(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) throw Error(path + ": no such file or folder; check the path");
}

std::string read_text(const std::string& path) {
  const std::string text = path == "-" ? read_stdin() : read_file(path);
  require_utf8(text, path == "-" ? "standard input" : path);
  return text;
}

void require_utf8(const std::string& text, const std::string& place) {
  const size_t at = text::find_invalid_utf8(text);
  if (at != std::string::npos) throw Error(place + ": byte " + std::to_string(at) + " is not valid UTF-8; convert the text to UTF-8 first");
}

namespace {

// Two commas with no id between them, or one at an end.
void require_no_gaps(const std::string& text, const std::string& place) {
  bool after_id = false;
  for (const char c : text + ",") {
    if (c == ',' && !std::exchange(after_id, false) && text.find(',') != std::string::npos)
      throw Error(place + ": a token id is missing before or after a comma; give whole numbers separated by commas or spaces");
    after_id = after_id || std::string_view(", \t\r\n").find(c) == std::string_view::npos;
  }
}

}  // namespace

std::vector<int32_t> parse_ids(const std::string& text, const std::string& place) {
  std::vector<int32_t> ids;
  const std::string separators = ", \t\r\n";
  require_no_gaps(text, place);
  for (size_t at = text.find_first_not_of(separators); at != std::string::npos; at = text.find_first_not_of(separators, at)) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    const std::string word = text.substr(at, end - at);
    if (word.find_first_not_of("0123456789") != std::string::npos || word.size() > 9)
      throw Error(place + ": \"" + word.substr(0, 40) + "\" is not a token id; give whole numbers separated by commas or spaces");
    ids.push_back(std::stoi(word));
    at = end;
  }
  if (ids.empty()) throw Error(place + ": holds no token ids; give whole numbers separated by commas or spaces");
  return ids;
}

void require_in_vocabulary(std::span<const int32_t> ids, int vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocabulary)
      throw Error("token " + std::to_string(ids[i]) + " at place " + std::to_string(i) + " is not in the model's vocabulary of " +
                  std::to_string(vocabulary) + "; use ids below that");
}

}  // namespace tersor::cli
