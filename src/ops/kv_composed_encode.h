// Encoding in composed MLX operations: vectors to codes and scalars, whatever the family.
#pragma once

#include "ops/kv_composed_codes.h"

namespace tersor::ops::composed {

/// x: float32 [B, H, tokens, dim], cleaned, centred, and rotated where the basis has a rotation. codecs: one, or one a head; map: the
/// basis's. The codes of each part are [B, H, tokens, dim or codes], not padded.
CodeBlocks encode(const codec::Layout& layout, const KvBasis::Codecs& codecs, const std::optional<codec::StoredMap>& map,
                  const mx::array& x, mx::StreamOrDevice s);

}  // namespace tersor::ops::composed
