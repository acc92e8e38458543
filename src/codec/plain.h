// Plain references over blocks, for callers that have no better way.
#pragma once

#include <span>

#include "codec/layout.h"

namespace tersor::codec {

/// Encodes one vector with a codec of the layout's form (heads may have calibrations of their own) and stores it as token `token`.
void encode_plainly(const Layout& layout, const Codec& codec, std::span<const float> x, uint8_t* blocks, int64_t token);

}  // namespace tersor::codec
