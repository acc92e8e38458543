#include "ops/linear_inputs.h"

#include <mlx/device.h>

#include <algorithm>

#include "ops/kv_rows.h"

namespace tersor::ops {
bool fit_one_node(std::initializer_list<const LinearWeight*> weights) {
  const bool packed = (*weights.begin())->packed.has_value();
  if (!packed && mx::default_device() == mx::Device::cpu) return false;
  return std::all_of(weights.begin(), weights.end(),
                     [&](const auto* w) { return w->packed.has_value() == packed && (packed || w->coding == Coding::affine); });
}

void add_inputs(const LinearWeight& w, std::vector<mx::array>& inputs) {
  if (!w.packed) inputs.push_back(w.weight);
  if (w.scales) inputs.push_back(*w.scales);
  if (w.biases) inputs.push_back(*w.biases);
  if (w.bias) inputs.push_back(*w.bias);
}

LinearJob job_of(const WeightFormat& format, const std::function<mx::array()>& take) {
  LinearJob job{packed_matrix_of(format), format.packed->data};
  if (format.bias) {
    const mx::array bias = take();
    job.bias = bias.data<void>(), job.bias_type = dtype_of(bias, "linear");
  }
  return job;
}

kernels::LinearMatrix matrix_of(const WeightFormat& format, const std::function<mx::array()>& take) {
  const mx::array weight = take();
  kernels::LinearMatrix m;
  m.weight = weight.data<void>();
  m.bits = format.bits, m.group = format.group, m.coding = format.coding;
  m.out = static_cast<size_t>(weight.shape(0));
  m.in = static_cast<size_t>(weight.shape(1));
  if (!m.bits) {
    m.weight_type = dtype_of(weight, "linear");
    return m;
  }
  m.in = m.in * 32 / static_cast<size_t>(m.bits);
  const mx::array scales = take();
  m.scales = scales.data<void>();
  if (format.coding != Coding::affine) return m;
  const mx::array biases = take();
  m.biases = biases.data<void>();
  m.scale_type = dtype_of(scales, "linear"), m.bias_type = dtype_of(biases, "linear");
  return m;
}

kernels::PackedMatrix packed_matrix_of(const WeightFormat& f) {
  const LinearWeight::Packed& p = *f.packed;
  return {p.data.get(), f.bits, f.group, p.type, static_cast<size_t>(p.out), static_cast<size_t>(p.in), f.coding, p.integers};
}

kernels::PackedMatrix packed_matrix_of(const LinearWeight& w) { return packed_matrix_of(WeightFormat(w)); }

size_t LinearWeight::nbytes() const {
  size_t sum = packed ? packed->gpu ? packed->gpu_bytes : packed_matrix_of(*this).bytes() : weight.nbytes();
  for (const auto* part : {&scales, &biases, &bias}) sum += *part ? (*part)->nbytes() : 0;
  return sum;
}

}  // namespace tersor::ops
