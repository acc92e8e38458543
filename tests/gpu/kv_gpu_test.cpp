// Caches on MLX's GPU backend: the plug-in's kernels against composed operations on the same device, in place and over many steps.
#include <gtest/gtest.h>
#include <mlx/mlx.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "cache/layer_state.h"
#include "ops/gpu_plugin.h"
#include "tersor/cache.h"

namespace tersor::cache {
namespace {

LayerCache make(const KvSpec& spec, LayerShape shape, Dtype full, ops::Policy policy) {
  return LayerCache(spec.keys, spec.values, spec.window, spec.sinks, shape, full, policy);
}

mx::array normal(mx::Shape shape, mx::Dtype dtype) { return mx::astype(mx::random::normal(std::move(shape)), dtype); }

double relative_error(const mx::array& a, const mx::array& b) {
  const mx::array x = mx::astype(a, mx::float32), y = mx::astype(b, mx::float32);
  mx::array error = mx::sqrt(mx::divide(mx::sum(mx::square(mx::subtract(x, y))), mx::sum(mx::square(y))));
  const double e = error.item<float>();
  return std::isnan(e) ? INFINITY : e;
}

TEST(GpuPlugin, IsThere) {
  ASSERT_TRUE(mx::is_available(mx::Device::gpu));
  ASSERT_EQ(mx::default_device(), mx::Device::gpu);
  EXPECT_NE(ops::gpu_plugin(), nullptr) << ops::gpu_plugin_problem();
}

// MLX multiplies floats in 19 bits unless told otherwise, which moves many codes over their thresholds.
const int kExactProducts = setenv("MLX_ENABLE_TF32", "0", 1);

constexpr const char* kNoKernel = "turboquant:3/turboquant:6";
struct Case {
  const char* spec;
  int dim, kv_heads, group, batch;
  mx::Dtype dtype;
};

// Composed operations round differently, so that a code may fall to the next level: far less than what codes cost.
TEST(KvGpu, KernelsAgreeWithComposedOperations) {
  mx::random::seed(1);
  for (const Case& c :
       {Case{"turboquant:4", 128, 8, 4, 1, mx::float16}, Case{"turboquant:4", 64, 3, 3, 2, mx::float32},
        Case{"turboquant:3", 96, 2, 1, 1, mx::bfloat16}, Case{"turboquant:2", 80, 2, 8, 1, mx::float16},
        Case{"affine:4", 128, 2, 4, 3, mx::float16}, Case{"affine:8", 64, 2, 2, 1, mx::float16},
        Case{"turboquant:4,window=50,sinks=4", 128, 2, 4, 1, mx::float16}, Case{"full", 128, 2, 4, 1, mx::float16},
        Case{"turboquant:4", 256, 2, 3, 1, mx::float16}, Case{"turboquant:5", 64, 2, 2, 1, mx::float16},
        Case{"turboquant:6,centre=256,window=64,sinks=4/turboquant:4", 128, 2, 4, 2, mx::float16},
        Case{"turboquant:6,centre=10", 80, 3, 1, 1, mx::float32}, Case{"affine:4,centre=16", 64, 2, 2, 1, mx::float16},
        Case{"turboquant:6,centre=16/turboquant:5", 256, 1, 2, 1, mx::bfloat16}, Case{kNoKernel, 64, 2, 2, 1, mx::float16}}) {
    SCOPED_TRACE(std::string(c.spec) + " D=" + std::to_string(c.dim));
    const std::string name = c.spec;
    const size_t slash = name.find('/');
    const KvSpec spec = slash == std::string::npos ? KvSpec::parse(name) : KvSpec::parse(name.substr(0, slash), name.substr(slash + 1));
    const LayerShape shape{c.batch, c.kv_heads, c.dim, c.dim};
    LayerCache fast = make(spec, shape, Dtype::f16, ops::Policy::automatic), composed = make(spec, shape, Dtype::f16, ops::Policy::forbid);
    EXPECT_EQ(fast.choices()[1].fast, std::string(c.spec) != kNoKernel) << fast.choices()[1].reason;
    for (const int tokens : {70, 1, 1, 200, 1, 5}) {
      const mx::array k = normal({c.batch, tokens, c.kv_heads * c.dim}, c.dtype),
                      v = normal({c.batch, tokens, c.kv_heads * c.dim}, c.dtype);
      const mx::array q = normal({c.batch, tokens, c.kv_heads * c.group * c.dim}, c.dtype);
      fast.append(k, v), composed.append(k, v);
      const mx::array a = fast.attend(q), b = composed.attend(q);
      mx::eval(a, b);
      EXPECT_LE(relative_error(a, b), c.dtype == mx::bfloat16 ? 1e-2 : 6e-3) << tokens;
    }
    AttendOptions options;
    options.soft_cap = 10, options.sinks = normal({c.kv_heads * c.group}, mx::float32);
    options.mask = mx::greater(mx::random::normal({3, static_cast<int>(fast.tokens())}), mx::array(-1.0f));
    const mx::array q = normal({c.batch, c.kv_heads * c.group, 3, c.dim}, c.dtype);
    EXPECT_LE(relative_error(fast.attend(q, options), composed.attend(q, options)), c.dtype == mx::bfloat16 ? 1e-2 : 6e-3) << "options";
    LayerCache copy = fast.copy();
    EXPECT_EQ(fast.trim(4), 4);
    EXPECT_EQ(composed.trim(4), 4);
    const mx::array one = normal({c.batch, 1, c.kv_heads * c.dim}, c.dtype),
                    row = normal({c.batch, 1, c.kv_heads * c.group * c.dim}, c.dtype);
    fast.append(one, one), composed.append(one, one);
    EXPECT_LE(relative_error(fast.attend(row), composed.attend(row)), c.dtype == mx::bfloat16 ? 1e-2 : 6e-3) << "after trimming";
    EXPECT_EQ(copy.tokens(), fast.tokens() + 3);
  }
}

// Chunks of a prompt, wide enough for the kernel of many rows.
TEST(KvGpu, ManyRowsAgreeWithComposedOperations) {
  mx::random::seed(2);
  for (const Case& c :
       {Case{"turboquant:4", 128, 8, 4, 2, mx::bfloat16}, Case{"turboquant:2,window=50,sinks=4", 64, 8, 4, 2, mx::float16},
        Case{"affine:4", 96, 8, 4, 2, mx::float32}, Case{"full", 128, 8, 4, 2, mx::float16}, Case{"full", 80, 8, 3, 2, mx::bfloat16}}) {
    SCOPED_TRACE(std::string(c.spec) + " D=" + std::to_string(c.dim));
    const KvSpec spec = KvSpec::parse(c.spec);
    const LayerShape shape{c.batch, c.kv_heads, c.dim, c.dim};
    LayerCache fast = make(spec, shape, Dtype::f16, ops::Policy::require), composed = make(spec, shape, Dtype::f16, ops::Policy::forbid);
    for (const int tokens : {300, 170, 257}) {
      const mx::array k = normal({c.batch, tokens, c.kv_heads * c.dim}, c.dtype),
                      v = normal({c.batch, tokens, c.kv_heads * c.dim}, c.dtype);
      const mx::array q = normal({c.batch, tokens, c.kv_heads * c.group * c.dim}, c.dtype);
      fast.append(k, v), composed.append(k, v);
      const mx::array a = fast.attend(q), b = composed.attend(q);
      mx::eval(a, b);
      EXPECT_LE(relative_error(a, b), c.dtype == mx::bfloat16 ? 1e-2 : 6e-3) << tokens;
    }
    AttendOptions options;
    options.soft_cap = 10, options.sinks = normal({c.kv_heads * c.group}, mx::float32);
    // Rows whose tokens have just come: further back, how far the window reaches depends on the layout.
    const mx::array k = normal({c.batch, 200, c.kv_heads * c.dim}, c.dtype), v = normal({c.batch, 200, c.kv_heads * c.dim}, c.dtype);
    fast.append(k, v), composed.append(k, v);
    options.mask = mx::greater(mx::random::normal({200, static_cast<int>(fast.tokens())}), mx::array(-1.0f));
    const mx::array q = normal({c.batch, c.kv_heads * c.group, 200, c.dim}, c.dtype);
    EXPECT_LE(relative_error(fast.attend(q, options), composed.attend(q, options)), c.dtype == mx::bfloat16 ? 1e-2 : 6e-3) << "options";
  }
}

const void* address(const mx::array& x) { return const_cast<mx::array&>(x).buffer().ptr(); }

// The pattern of a decoding loop that stays one step ahead of the device.
TEST(KvGpu, AppendsInPlaceUnderAsynchronousEvaluation) {
  const LayerShape shape{1, 8, 128, 128};
  LayerCache layer = make(KvSpec::parse("turboquant:4"), shape, Dtype::f16, ops::Policy::require);
  layer.reserve(4096);
  layer.append(normal({1, 1000, 1024}, mx::float16), normal({1, 1000, 1024}, mx::float16));
  mx::array previous = layer.attend(normal({1, 1, 4096}, mx::float16));
  mx::eval(previous);
  mx::array held = layer.arrays()[0];
  mx::eval(held);
  const void* const start = address(held);
  int in_place = 0;
  for (int step = 0; step < 60; ++step) {
    layer.append(normal({1, 1, 1024}, mx::float16), normal({1, 1, 1024}, mx::float16));
    mx::array out = layer.attend(normal({1, 1, 4096}, mx::float16));
    mx::async_eval(out);
    previous.wait();
    previous = out;
    in_place += address(layer.arrays()[0]) == start;
  }
  mx::eval(previous);
  EXPECT_EQ(in_place, 60);
}

TEST(KvGpu, ThousandsOfStepsTakeNoMoreMemory) {
  const LayerShape shape{1, 2, 64, 64};
  LayerCache layer = make(KvSpec::parse("turboquant:4"), shape, Dtype::f16, ops::Policy::require);
  layer.reserve(30000);
  const mx::array k = normal({1, 1, 128}, mx::float16), q = normal({1, 1, 256}, mx::float16);
  mx::eval(k, q);
  size_t early = 0;
  mx::array previous = k;
  for (int step = 0; step < 20000; ++step) {
    layer.append(k, k);
    mx::array out = layer.attend(mx::multiply(q, mx::array(1.0f, mx::float16)));
    mx::async_eval(out);
    previous.wait();
    previous = out;
    if (step == 500) early = mx::get_active_memory();
  }
  mx::eval(previous);
  EXPECT_LE(mx::get_active_memory(), early + (1 << 20));
  EXPECT_EQ(layer.tokens(), 20000);
}

TEST(KvGpu, SavedCachesComeBackHereOnly) {
  const KvSpec spec = KvSpec::parse("turboquant:4,window=40,sinks=3");
  const LayerShape shape{1, 2, 64, 64};
  KvCache cache(spec, 2, shape, Dtype::f16, ops::Policy::automatic);
  for (int i = 0; i < 2; ++i) cache.layer(i).append(normal({1, 200, 128}, mx::float16), normal({1, 200, 128}, mx::float16));
  const auto path = std::filesystem::temp_directory_path() / "tersor-gpu-test.kv";
  cache.save(path, {{"name", "test"}});
  auto loaded = KvCache::load(path, {{"name", "test"}}, ops::Policy::automatic);
  const mx::array q = normal({1, 1, 256}, mx::float16);
  EXPECT_EQ(relative_error(loaded.cache.layer(1).attend(q), cache.layer(1).attend(q)), 0);
  EXPECT_THROW(KvCache::load(path, {{"name", "test"}}, ops::Policy::forbid), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tersor::cache
