// Dropping the first tokens of a slab in place.
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <stdexcept>

#include "ops/kv_cases.h"

namespace tersor::test {
namespace {

TEST(KvSlide, KeepsTheOtherTokens) {
  Random random(31);
  for (const char* codec : {"full:fp16", "affine:4", "turboquant:6"}) {
    SCOPED_TRACE(codec);
    FormatOptions o{.keys = codec, .values = codec};
    o.heads = 3, o.batch = 2;
    const auto format = make_format(o);
    const int64_t block = format->granularity(), tokens = 3 * block + 5;
    const mx::array k = arranged(normal_rows(random, o.batch, o.heads, static_cast<int>(tokens), o.key_dim), mx::float32, kArrangements[0]);
    const mx::array v = arranged(normal_rows(random, o.batch, o.heads, static_cast<int>(tokens), o.value_dim), mx::float32, kArrangements[0]);
    KvSlab slab = KvSlab::make(format, tokens, 7);
    append(slab, k, v, 0, tokens, kFast);
    const Rows keys = decoded(slab, true), values = decoded(slab, false);
    ops::kv_slide(slab, 2 * block, {});
    EXPECT_EQ(slab.first, 7 + 2 * block);
    EXPECT_EQ(slab.count, tokens - 2 * block);
    const Rows left_keys = decoded(slab, true), left_values = decoded(slab, false);
    for (int b = 0; b < o.batch; ++b)
      for (int h = 0; h < o.heads; ++h)
        for (int t = 0; t < slab.count; ++t) {
          for (int i = 0; i < o.key_dim; ++i) ASSERT_EQ(left_keys.row(b, h, t)[i], keys.row(b, h, t + 2 * block)[i]);
          for (int i = 0; i < o.value_dim; ++i) ASSERT_EQ(left_values.row(b, h, t)[i], values.row(b, h, t + 2 * block)[i]);
        }
    EXPECT_THROW(ops::kv_slide(slab, 1, {}), std::invalid_argument);
    EXPECT_THROW(ops::kv_slide(slab, 2 * block, {}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tersor::test
