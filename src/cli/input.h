// What users hand to the program: files, standard input, lists of token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor::cli {

/// Throws Error when there is nothing at the path.
void require_exists(const std::string& path);

/// A text file, or standard input for "-". Throws Error for invalid UTF-8, naming the byte.
std::string read_text(const std::string& path);
/// Throws Error naming `place` and the first byte that is not UTF-8.
void require_utf8(const std::string& text, const std::string& place);

/// "1,2,3" or "1 2 3" or one a line. Throws Error naming `place` for anything else.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& place);

/// Throws Error when an id is not in a vocabulary of this size.
void require_in_vocabulary(std::span<const int32_t> ids, int vocabulary);

}  // namespace tersor::cli
