// Tokens that end a reply in the families that are known, whatever the file lists.
#pragma once

#include "tersor/text.h"

namespace tersor::text {

/// Fills data.end_tokens from eos, `also` and the well-known names among the special tokens; ascending, each once.
void collect_end_tokens(TokenizerData& data, std::optional<int32_t> also = std::nullopt);

}  // namespace tersor::text
