// A random linear problem on the host and the device, and its plain answer in double.
#pragma once

#include <cmath>
#include <memory>
#include <unordered_map>

#include "linear_device.cuh"

namespace tersor::kernels::cuda {

struct LinearCase {
  std::vector<int> columns;  // rows of each weight; two equal ones when paired
  int k, bits, group, rows;
  Dtype x_type = Dtype::f16, scale_type = Dtype::f16, stored_scale = Dtype::f16, y_type = Dtype::f16;
  bool paired = false, bias = false, residual = false;
  float x_scale = 1, bad = 0;  // bad: not 0, one number of every row of x
};

class LinearFixture {
 public:
  LinearFixture(const LinearCase& c, unsigned seed) : c_(c), rng_(seed), x_(c.x_type, static_cast<size_t>(c.rows) * c.k) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x_.values.size(); ++i) x_.set(i, c.bad != 0 && i % c.k == 77 ? c.bad : normal(rng_) * c.x_scale);
    x_device_ = std::make_unique<Buffer>(x_.bytes);
    int strips = 0;
    for (int n : c.columns) {
      weights_.emplace_back(n, c.k, c.bits, c.group, c.scale_type, rng_);
      device_.emplace_back(weights_.back());
      if (!c.paired) first_strip_.push_back(strips), strips += linear_strips(n, false);
    }
    if (c.paired) first_strip_.push_back(0), strips = linear_strips(c.columns[0], true);
    shape_ = {c.bits, c.group, c.stored_scale, c.k, strips, c.paired};
    packed_ = std::make_unique<Buffer>(linear_packed_bytes(shape_), 0xff);
    const size_t outputs = first_strip_.size();
    for (size_t i = 0; i < outputs; ++i) {
      RepackParams params;
      const Launch l = linear_repack(shape_, device_[i].rows(), c.paired ? device_[1].rows() : AffineRows{}, c.columns[i], c.scale_type,
                                     first_strip_[i], packed_->get(), &params);
      launch(l, params);
      add_output(i);
    }
    check(cudaDeviceSynchronize(), "repack");
  }

  LinearProblem problem() const {
    LinearProblem p;
    p.weight = shape_, p.packed = packed_->get(), p.x = x_device_->get(), p.x_stride = c_.k;
    p.x_type = c_.x_type, p.y_type = c_.y_type, p.rows = c_.rows;
    p.output_count = static_cast<int>(y_.size());
    for (size_t i = 0; i < y_.size(); ++i) {
      p.outputs[i].y = y_[i].get(), p.outputs[i].stride = stride(i), p.outputs[i].columns = c_.columns[i];
      p.outputs[i].first_strip = first_strip_[i];
      if (c_.bias) p.outputs[i].bias = bias_device_[i].get();
      if (c_.bias && c_.paired) p.outputs[i].bias_up = bias_device_[1].get();
      if (c_.residual) p.outputs[i].residual = residual_device_[i].get();
    }
    return p;
  }

  /// The largest error in units of what the arithmetic allows: `weight_eps` for rounded weights, `sum_eps` for float sums of the
  /// products' absolute values, and the rounding of the output. NaN and columns written beyond the output count as infinite.
  /// Large problems are compared in every 31st column or so, and checked for unwritten results in all.
  /// `integers`: x is taken as 16-bit integers, one scale a group.
  double worst(double weight_eps, double sum_eps, bool integers = false) const {
    double worst = 0;
    integers_ = integers;
    wants_.resize(y_.size());
    for (size_t i = 0; i < y_.size(); ++i) {
      const std::vector<uint8_t> y = y_[i].read<uint8_t>();
      for (int m = 0; m < c_.rows; ++m)
        for (int n = 0; n < stride(i); ++n) {
          const size_t at = static_cast<size_t>(m) * stride(i) + n;
          const float got = Numbers::read(c_.y_type, y.data(), at);
          if (std::isnan(got) != (n >= c_.columns[i])) return INFINITY;
          if (n >= c_.columns[i] || n % sparse() != m % sparse()) continue;
          auto [known, added] = wants_[i].try_emplace(at);
          Want& want = known->second;
          if (added) want.value = answer(i, m, n, weight_eps, sum_eps, &want.bound);
          const double error = std::fabs(got - want.value) / want.bound;
          if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
    }
    return worst;
  }
  std::vector<uint8_t> output(size_t i) const { return y_[i].read<uint8_t>(); }
  void poison() const {
    for (const Buffer& y : y_) check(cudaMemset(y.get(), 0xff, y.size()), "poison");
  }
  const HostWeight& weight(size_t i) const { return weights_[i]; }
  const PackedLinear& shape() const { return shape_; }
  const Buffer& packed() const { return *packed_; }
  int first_strip(size_t i) const { return first_strip_[i]; }

 private:
  struct Want {
    double value = 0, bound = 0;
  };
  int sparse() const { return 1.0 * c_.columns[0] * c_.k * c_.rows > 5e7 ? 31 : 1; }
  // Rows of y are longer than they need be, so that writes beyond the columns are seen.
  int stride(size_t i) const { return c_.columns[i] + 24; }

  void add_output(size_t i) {
    std::normal_distribution<float> normal;
    const size_t n = static_cast<size_t>(c_.rows) * stride(i);
    y_.emplace_back(n * size_of(c_.y_type), 0xff);
    for (size_t j = i; j < (c_.paired ? 2 : i + 1); ++j) {
      bias_.emplace_back(c_.y_type, c_.columns[i]);
      for (int r = 0; r < c_.columns[i]; ++r) bias_.back().set(r, normal(rng_));
      bias_device_.emplace_back(bias_.back().bytes);
    }
    residual_.emplace_back(c_.y_type, n);
    for (size_t r = 0; r < n; ++r) residual_.back().set(r, normal(rng_));
    residual_device_.emplace_back(residual_.back().bytes);
  }

  double product(const HostWeight& w, int m, int n, double* absolute, double* rounding) const {
    double sum = 0, rounded = 0;
    *absolute = 0;
    const size_t row = static_cast<size_t>(n) * w.k;
    for (int g = 0; g < w.k / w.group; ++g) {
      const double scale = w.scales.values[row / w.group + g], bias = w.biases.values[row / w.group + g];
      double most = 0, codes = 0;
      for (int j = g * w.group; j < (g + 1) * w.group; ++j) {
        const size_t bit = (row + j) * w.bits;
        const double code = (w.codes[bit / 32] >> (bit % 32)) & ((1u << w.bits) - 1), x = x_.values[static_cast<size_t>(m) * w.k + j];
        sum += x * (scale * code + bias);
        *absolute += std::fabs(x) * (std::fabs(scale) * code + std::fabs(bias));
        most = std::max(most, std::fabs(x)), codes += std::fabs(scale * code + bias);
      }
      rounded += most / 65278 * codes;
    }
    *rounding = integers_ ? rounded : 0;
    return sum;
  }
  double answer(size_t i, int m, int n, double weight_eps, double sum_eps, double* bound) const {
    const double eps = c_.y_type == Dtype::f32 ? 0 : c_.y_type == Dtype::f16 ? 0x1p-11 : 0x1p-8, per_product = weight_eps + sum_eps;
    double absolute, rounding, want = product(weights_[i], m, n, &absolute, &rounding);
    *bound = per_product * absolute + rounding + 1e-30;
    if (c_.bias) want += bias_[i].values[n];
    if (c_.paired) {
      double absolute_up, rounding_up, up = product(weights_[1], m, n, &absolute_up, &rounding_up);
      if (c_.bias) up += bias_[1].values[n];
      const double gate = want / (1 + std::exp(-want));
      *bound =
          1.1 * *bound * std::fabs(up) + (per_product * absolute_up + rounding_up) * std::fabs(gate) + 1e-5 * std::fabs(gate * up) + 1e-30;
      want = gate * up;
    }
    const double before = want;
    if (c_.residual) want += residual_[i].values[static_cast<size_t>(m) * stride(i) + n];
    *bound += eps * (1.01 * std::fabs(want) + (weight_eps > 0 ? std::fabs(before) : 0)) + (c_.y_type == Dtype::f16 ? 0x1p-24 : 0);
    return want;
  }

  LinearCase c_;
  std::mt19937 rng_;
  Numbers x_;
  std::unique_ptr<Buffer> x_device_, packed_;
  std::vector<HostWeight> weights_;
  std::vector<DeviceWeight> device_;
  std::vector<int> first_strip_;
  PackedLinear shape_;
  std::vector<Buffer> y_, bias_device_, residual_device_;
  std::vector<Numbers> bias_, residual_;
  mutable std::vector<std::unordered_map<size_t, Want>> wants_;
  mutable bool integers_ = false;
};

}  // namespace tersor::kernels::cuda
