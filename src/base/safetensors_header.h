// Parsing a safetensors header without building a JSON tree, so that a hostile header costs no more memory than its own size suggests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::safetensors {

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  unsigned seen = 0;  // bits: dtype, shape, data_offsets
};

struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Throws Error "PLACE: ..." unless the text is {"NAME": {"dtype": "..", "shape": [..], "data_offsets": [.., ..]}, ...} with an
/// optional "__metadata__" of strings, names and keys occurring once.
Header parse_header(std::string_view text, const std::string& place);

}  // namespace tersor::safetensors
