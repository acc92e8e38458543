#include <mlx/mlx.h>
#include <tersor/tersor.h>

#include <cstdio>

namespace mx = mlx::core;

// One layer's cache: 100 tokens of 3 KV heads in 4 bits, then attention of one query row of 9 heads over them.
int main() {
  const auto codec = tersor::codec::Spec::parse("turboquant:4");
  const tersor::cache::LayerShape shape{.batch = 1, .kv_heads = 3, .key_dim = 64, .value_dim = 64};
  tersor::cache::LayerCache cache(codec, codec, /*window=*/0, /*sinks=*/0, shape, tersor::Dtype::f16, tersor::ops::Policy::automatic);
  cache.append(mx::random::normal({1, 3, 100, 64}), mx::random::normal({1, 3, 100, 64}));
  const mx::array out = cache.attend(mx::random::normal({1, 9, 1, 64}));
  const float sum = mx::sum(out * out).item<float>();
  std::printf("%s: %lld tokens, output energy %.3f\n", codec.str().c_str(), static_cast<long long>(cache.tokens()), sum);
  return sum > 0 && sum < 576 ? 0 : 1;
}
