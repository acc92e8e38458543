#include "codec/plain.h"

namespace tersor::codec {

void encode_plainly(const Layout& layout, const Codec& codec, std::span<const float> x, uint8_t* blocks, int64_t token) {
  std::vector<float> scalars(static_cast<size_t>(codec.scalars()));
  std::vector<Code> codes(static_cast<size_t>(codec.codes()));
  codec.encode(x, codes, scalars);
  layout.put(blocks, token, codes, scalars);
}

}  // namespace tersor::codec
