// The linear maps of a codec (tersor/codec.h) as kernels apply them: to each query and to each output, once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "codec/layout.h"

namespace tersor::codec {

/// Keys: from queries to stored vectors; values: from sums of stored vectors to outputs. A row of `in` numbers becomes the sum over i of
/// row[i] * matrix[i][...], `out` numbers. The stored side is padded as Layout has it; behind the codec's sections lies one for tokens in
/// full precision, which are stored as they are. Codecs whose whole map is a Rotation, or nothing, need none of this.
struct StoredMap {
  /// codecs: one, or one a KV head. layout: theirs.
  StoredMap(std::span<const std::shared_ptr<const Codec>> codecs, const Layout& layout);
  /// Whether a codec's map is more than its rotation.
  static bool needed(const Codec& codec);

  int in = 0, out = 0;
  bool per_head() const { return heads_ > 1; }
  size_t heads() const { return heads_; }  // with a map of their own, or 1
  int full_begin = 0;                      // of the section for full precision
  const float* of_head(int64_t head) const {
    return matrices.data() + (heads_ == 1 ? 0 : static_cast<size_t>(head) * static_cast<size_t>(in) * static_cast<size_t>(out));
  }

 private:
  size_t heads_ = 1;
  std::vector<float> matrices;  // [heads][in][out]
};

}  // namespace tersor::codec
