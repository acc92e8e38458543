// Parsing a safetensors header without building a JSON tree, so that a hostile header costs no more memory than its own size suggests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::model::safetensors {

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  unsigned seen = 0;                     // bits: dtype, shape, data_offsets
};

/// Throws Error "PLACE: ..." unless the text is {"NAME": {"dtype": "..", "shape": [..], "data_offsets": [.., ..]}, ...} with an
/// optional "__metadata__" of strings, names and keys occurring once.
std::vector<Entry> parse_header(std::string_view text, const std::string& place);

}  // namespace tersor::model::safetensors
