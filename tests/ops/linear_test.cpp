// Linear-layer nodes: fast kernels and composed MLX operations against plain sums in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "kernels/cpu/simd_target.h"
#include "ops/reference.h"

namespace tersor::ops {
namespace {

const mx::Dtype kDtypes[] = {mx::float32, mx::float16, mx::bfloat16};

void expect_near(const mx::array& got, const std::vector<double>& want, const std::vector<double>& tolerance, const std::string& what) {
  const auto values = floats_of(got);
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], want[i], tolerance[i]) << what << " at " << i;
}

// Rounding of the sum (`units` of x's type for MLX's own arithmetic, float for ours) and of the result.
std::vector<double> tolerance_of(const Product& p, mx::Dtype dtype, double in, double unit) {
  std::vector<double> t(p.value.size());
  for (size_t i = 0; i < t.size(); ++i) t[i] = (in + 8) * unit * p.magnitude[i] + unit_of(dtype) * std::abs(p.value[i]) + 1e-7;
  return t;
}

class LinearNode : public testing::Test {
 protected:
  ~LinearNode() override { kernels::force_simd_target(""); }
  std::mt19937 rng{7};
};

TEST_F(LinearNode, EveryFormatRowCountAndTypeEqualsTheDoubleReference) {
  int turn = 0;
  for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      if (!bits && group != 32) continue;
      for (const int rows : {1, 2, 3, 5, 8, 9, 33, 130}) {
        const mx::Dtype dtype = kDtypes[++turn % 3];
        const LinearWeight w = random_weight(rng, bits, bits ? group : 0, 75, 256, kDtypes[turn / 3 % 3], turn % 2);
        const mx::array x = random_array(rng, {rows, 256}, dtype);
        const Product p = product(x, w);
        const LinearWeight laid = packed(w);
        const mx::array y = linear(x, {&laid, 1}, fast("linear")).front();
        ASSERT_EQ(y.dtype(), dtype);
        ASSERT_EQ(y.shape(), (mx::Shape{rows, 75}));
        expect_near(y, p.value, tolerance_of(p, dtype, 256, kFloatEpsilon), w.str() + " rows " + std::to_string(rows));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LinearNode, EqualsTheComposedVersion) {
  for (const int bits : {0, 2, 3, 4, 5, 6, 8}) {
    for (const mx::Dtype dtype : kDtypes) {
      for (const int rows : {1, 3, 17}) {
        const LinearWeight w = random_weight(rng, bits, bits ? 64 : 0, 40, 128, dtype, true);
        const mx::array x = random_array(rng, {1, rows, 128}, dtype);
        const Product p = product(x, w);
        const LinearWeight laid = packed(w);
        const auto ours = floats_of(linear(x, {&laid, 1}, fast("linear")).front());
        const mx::array composed = linear(x, {&w, 1}, composed_choice("linear")).front();
        ASSERT_EQ(composed.dtype(), dtype);
        const auto theirs = floats_of(composed);
        const auto tolerance = tolerance_of(p, dtype, 128, unit_of(dtype));
        for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 2 * tolerance[i]) << w.str() << " " << dtype << " " << i;
      }
    }
  }
}

TEST_F(LinearNode, SeveralWeightsOfUnlikeFormatsShareOneNode) {
  const LinearWeight weights[] = {random_weight(rng, 4, 32, 96, 192, mx::float16), random_weight(rng, 6, 64, 33, 192, mx::float32, true),
                                  random_weight(rng, 4, 32, 5, 192, mx::float16), random_weight(rng, 0, 0, 17, 192, mx::bfloat16)};
  const LinearWeight laid[] = {packed(weights[0]), packed(weights[1]), packed(weights[2]), packed(weights[3])};
  for (const int rows : {1, 4, 70}) {
    const mx::array x = random_array(rng, {rows, 192}, mx::float32);
    const auto results = linear(x, laid, fast("linear"));
    ASSERT_EQ(results.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      const Product p = product(x, weights[i]);
      expect_near(results[i], p.value, tolerance_of(p, mx::float32, 192, kFloatEpsilon), weights[i].str());
    }
  }
}

// Packed for both precisions: dense weights, the microscaling formats, affine codes, and several in one node.
TEST_F(LinearNode, PackedWeightsOfEveryFormat) {
  const LinearWeight all[] = {random_weight(rng, 0, 0, 75, 256, mx::float32, true), random_weight(rng, 0, 0, 40, 256, mx::float16),
                              random_weight(rng, 0, 0, 9, 256, mx::bfloat16),       random_mx_weight(rng, Coding::mxfp4, 75, 256, true),
                              random_mx_weight(rng, Coding::mxfp8, 33, 256),        random_weight(rng, 4, 64, 50, 256, mx::float16)};
  for (const Precision precision : {Precision::int16, Precision::exact}) {
    LinearPacker packer(precision);
    std::vector<LinearWeight> laid;
    for (const auto& w : all) {
      laid.push_back(packer.pack(w));
      const Choice choice = choose("linear", laid.back().str(), mx::float32, 0, Policy::require);
      EXPECT_EQ(choice.precision, laid.back().packed->integers ? Precision::int16 : Precision::exact) << laid.back().str();
      EXPECT_THROW(packer.pack(laid.back()), std::invalid_argument);
    }
    for (const int rows : {1, 5, 40}) {
      const mx::array x = random_array(rng, {rows, 256}, kDtypes[rows % 3]);
      const auto results = linear(x, laid, fast("linear"));
      for (size_t i = 0; i < laid.size(); ++i) {
        const Product p = product(x, all[i]);
        const double rounding = laid[i].packed->integers ? 1.0 / 8000 : 0;  // of x to integers, of groups whose largest is below 5
        auto tolerance = tolerance_of(p, x.dtype(), 256, kFloatEpsilon);
        const Worth worth(all[i]);
        for (size_t k = 0; k < tolerance.size(); ++k)
          for (size_t j = 0; j < 256; ++j) tolerance[k] += rounding * worth.terms[k % static_cast<size_t>(all[i].out_features()) * 256 + j];
        expect_near(results[i], p.value, tolerance, laid[i].str() + " rows " + std::to_string(rows));
      }
    }
  }
}

TEST_F(LinearNode, WeightsThatAreNotPackedRunComposed) {
  const LinearWeight all[] = {random_mx_weight(rng, Coding::mxfp4, 40, 128, true), random_mx_weight(rng, Coding::mxfp8, 40, 128),
                              random_weight(rng, 4, 64, 40, 128, mx::float16), random_weight(rng, 0, 0, 40, 128, mx::float32, true)};
  for (const auto& w : all) {
    const Choice choice = choose("linear", w.str(), mx::float32, 0, Policy::automatic);
    EXPECT_FALSE(choice.fast);
    EXPECT_THAT(choice.reason, testing::HasSubstr("LinearPacker"));
    for (const int rows : {1, 17}) {
      const mx::array x = random_array(rng, {rows, 128}, mx::float32);
      const Product p = product(x, w);
      expect_near(linear(x, {&w, 1}, composed_choice("linear")).front(), p.value, tolerance_of(p, mx::float32, 128, kFloatEpsilon),
                  w.str());
      EXPECT_THROW(linear(x, {&w, 1}, fast("linear")), std::invalid_argument);
    }
  }
}

// Codes and scales that MLX makes, packed, are worth what MLX says, number by number.
TEST_F(LinearNode, MicroscalingRowsAreThoseOfMlx) {
  for (const Coding coding : {Coding::mxfp4, Coding::mxfp8}) {
    const std::string mode(name_of(coding));
    const auto parts = mx::quantize(random_array(rng, {50, 96}, mx::float32), std::nullopt, std::nullopt, mode);
    LinearWeight w{parts[0], parts[1], {}, coding == Coding::mxfp4 ? 4 : 8, 32, {}};
    w.coding = coding;
    const auto want = floats_of(mx::dequantize(parts[0], parts[1], std::nullopt, 32, w.bits, mode, std::nullopt, mx::float32));
    const mx::array ids = mx::arange(50);
    EXPECT_EQ(floats_of(embed(ids, w, mx::float32)), want);
    for (const Precision precision : {Precision::int16, Precision::exact})
      EXPECT_EQ(floats_of(embed(ids, LinearPacker(precision).pack(w), mx::float32)), want);
  }
}

TEST_F(LinearNode, AddsTheResidual) {
  for (const bool use_fast : {true, false}) {
    for (const mx::Dtype dtype : kDtypes) {
      for (const int rows : {1, 20}) {
        const LinearWeight w = random_weight(rng, 4, 32, 67, 96, mx::float16, true);
        const mx::array x = random_array(rng, {rows, 96}, dtype), residual = random_array(rng, {rows, 67}, dtype);
        const mx::array y =
            use_fast ? linear_add(x, packed(w), residual, fast("linear")) : linear_add(x, w, residual, composed_choice("linear"));
        ASSERT_EQ(y.dtype(), dtype);
        Product p = product(x, w);
        const auto r = floats_of(residual);
        for (size_t i = 0; i < r.size(); ++i) p.value[i] += r[i], p.magnitude[i] += std::abs(r[i]);
        expect_near(y, p.value, tolerance_of(p, dtype, 96, use_fast ? kFloatEpsilon : unit_of(dtype)), "residual");
      }
    }
  }
}

double activated(Activation activation, double v) {
  switch (activation) {
    case Activation::silu: return v / (1 + std::exp(-v));
    case Activation::gelu: return v / 2 * std::erfc(-v / std::sqrt(2.0));
    case Activation::gelu_tanh: return v / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  }
  return 0;
}

TEST_F(LinearNode, GatesWithEveryActivation) {
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    for (const bool use_fast : {true, false}) {
      for (const int rows : {1, 2, 40}) {
        const LinearWeight gate = random_weight(rng, 4, 32, 83, 96, mx::float16), up = random_weight(rng, 5, 32, 83, 96, mx::float16, true);
        const mx::array x = random_array(rng, {rows, 96}, mx::float32);
        const mx::array y = use_fast ? linear_gated(x, packed(gate), packed(up), activation, fast("linear"))
                                     : linear_gated(x, gate, up, activation, composed_choice("linear"));
        const Product g = product(x, gate), u = product(x, up);
        std::vector<double> want(g.value.size()), tolerance(want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          const double value = activated(activation, g.value[i]), error = 104 * kFloatEpsilon;
          want[i] = value * u.value[i];
          // No slope is above 1.13; the composed 1 + erf and 1 + tanh round at 1, whatever is left of them.
          tolerance[i] = error * (1.2 * g.magnitude[i] * std::abs(u.value[i]) + std::abs(value) * u.magnitude[i]) + 1e-6;
        }
        expect_near(y, want, tolerance, std::string(name_of(activation)) + (use_fast ? " fast" : " composed"));
      }
    }
  }
}

TEST_F(LinearNode, TakesStridedAndBroadcastInputsAndAnyLeadingShape) {
  const LinearWeight w = random_weight(rng, 4, 32, 31, 64, mx::float16);
  const mx::array base = random_array(rng, {6, 64, 2}, mx::float32);
  const mx::array strided = mx::transpose(mx::slice(base, {0, 0, 1}, {6, 64, 2}), {2, 0, 1});  // [1, 6, 64]
  const mx::array repeated = mx::broadcast_to(random_array(rng, {64}, mx::float32), {3, 2, 64});
  const LinearWeight laid = packed(w);
  for (const mx::array& x : {strided, repeated}) {
    const mx::array y = linear(x, {&laid, 1}, fast("linear")).front();
    mx::Shape shape = x.shape();
    shape.back() = 31;
    ASSERT_EQ(y.shape(), shape);
    const Product p = product(x, w);
    expect_near(y, p.value, tolerance_of(p, mx::float32, 64, kFloatEpsilon), "strided");
  }
  const mx::array empty = mx::zeros({0, 64});
  EXPECT_EQ(linear(empty, {&laid, 1}, fast("linear")).front().shape(), (mx::Shape{0, 31}));
}

TEST_F(LinearNode, StridedWeightsAreReadRight) {
  LinearWeight w = random_weight(rng, 4, 32, 8, 64, mx::float16);
  w.scales = mx::transpose(mx::contiguous(mx::transpose(*w.scales)));
  w.weight = mx::transpose(mx::contiguous(mx::transpose(w.weight)));
  const mx::array x = random_array(rng, {2, 64}, mx::float32);
  const Product p = product(x, w);
  const LinearWeight laid = packed(w);
  expect_near(linear(x, {&laid, 1}, fast("linear")).front(), p.value, tolerance_of(p, mx::float32, 64, kFloatEpsilon), "strided weight");
}

TEST_F(LinearNode, EverySimdTargetAgrees) {
  for (const auto& name : kernels::available_simd_targets()) {
    kernels::force_simd_target(name);
    for (const int bits : {0, 3, 4, 8}) {
      for (const int rows : {1, 7, 50}) {
        const LinearWeight w = random_weight(rng, bits, bits ? 32 : 0, 70, 160, mx::float16);
        const mx::array x = random_array(rng, {rows, 160}, mx::float16);
        const Product p = product(x, w);
        const LinearWeight laid = packed(w);
        expect_near(linear(x, {&laid, 1}, fast("linear")).front(), p.value, tolerance_of(p, mx::float16, 160, kFloatEpsilon), name);
      }
    }
  }
}

TEST_F(LinearNode, NonFiniteRowsTouchNoOthers) {
  const LinearWeight w = packed(random_weight(rng, 8, 32, 20, 64, mx::float16));
  for (const int rows : {3, 8, 30}) {
    const mx::array clean = random_array(rng, {rows, 64}, mx::float32);
    auto values = floats_of(clean);
    values[64 + 5] = std::numeric_limits<float>::infinity(), values[64 + 6] = std::numeric_limits<float>::quiet_NaN();
    const mx::array dirty(values.data(), {rows, 64}, mx::float32);
    const auto a = floats_of(linear(clean, {&w, 1}, fast("linear")).front()), b = floats_of(linear(dirty, {&w, 1}, fast("linear")).front());
    for (size_t i = 0; i < a.size(); ++i) {
      if (i / 20 != 1) { ASSERT_EQ(a[i], b[i]) << i; }
    }
  }
}

TEST_F(LinearNode, BadShapesAndTypesAreRefusedByName) {
  const LinearWeight good = random_weight(rng, 4, 32, 8, 64, mx::float16);
  const mx::array x = mx::zeros({2, 64});
  const auto message = [&](const mx::array& input, const LinearWeight& w) -> std::string {
    try {
      linear(input, {&w, 1}, fast("linear"));
    } catch (const std::invalid_argument& error) { return error.what(); }
    return "accepted";
  };
  EXPECT_THAT(message(mx::zeros({2, 65}), good), testing::StartsWith("[linear] x has shape"));
  EXPECT_THAT(message(mx::zeros({2, 64}, mx::int32), good), testing::StartsWith("[linear] dtype"));
  LinearWeight bad = good;
  bad.bits = 7;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("2, 3, 4, 5, 6 or 8"));
  bad = good, bad.group = 16;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("32, 64 or 128"));
  bad = good, bad.group = 128;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("groups of 128"));
  bad = good, bad.scales = std::nullopt;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("scales"));
  bad = good, bad.scales = mx::zeros({8, 3});
  EXPECT_THAT(message(x, bad), testing::HasSubstr("shape"));
  bad = good, bad.coding = Coding::mxfp8;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("mxfp8 has 8"));
  bad = random_mx_weight(rng, Coding::mxfp4, 8, 64), bad.scales = good.scales;
  EXPECT_THAT(message(x, bad), testing::HasSubstr("must be uint8"));
  bad = good, bad.bias = mx::zeros({9});
  EXPECT_THAT(message(x, bad), testing::HasSubstr("bias"));
  EXPECT_THROW(linear_add(x, packed(good), mx::zeros({2, 9}), fast("linear")), std::invalid_argument);
  EXPECT_THROW(linear_gated(x, packed(good), packed(random_weight(rng, 4, 32, 9, 64, mx::float16)), Activation::silu, fast("linear")),
               std::invalid_argument);
  EXPECT_THROW(linear(x, {}, fast("linear")), std::invalid_argument);
}

}  // namespace
}  // namespace tersor::ops
