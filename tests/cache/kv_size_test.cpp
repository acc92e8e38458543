#include "cache/kv_size.h"

#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>

namespace tersor::cache {
namespace {

// What is expected of a cache of whole blocks is what it holds, but for constants such as a rotation's signs.
TEST(KvSize, IsWhatACacheHolds) {
  const LayerShape shape{1, 2, 64, 64};
  constexpr int kLayers = 4, kTokens = 1024;
  for (const char* text :
       {"full", "affine:4", "affine:8,group=32", "turboquant:4", "turboquant:3,skip=0+-1", "turboquant:4,sinks=64,window=64"}) {
    const KvSpec spec = KvSpec::parse(text);
    KvCache cache(spec, kLayers, shape, Dtype::f16, ops::Policy::automatic);
    cache.reserve(kTokens);
    for (int i = 0; i < kLayers; ++i) {
      const auto block = mx::random::normal({1, kTokens, shape.kv_heads * shape.key_dim});
      cache.layer(i).append(block, block);
    }
    cache.eval();
    const auto held = static_cast<double>(cache.bytes()),
               expected = static_cast<double>(expected_bytes(spec, kLayers, shape, Dtype::f16, kTokens));
    EXPECT_NEAR(expected / held, 1, spec.window ? 0.25 : 0.03) << text;
  }
}

}  // namespace
}  // namespace tersor::cache
