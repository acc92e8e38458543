#include "ops/linear_inputs.h"

#include <algorithm>

#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

kernels::PackedMatrix packed_shape_of(const WeightFormat& f) {
  const LinearWeight::Packed& p = *f.packed;
  return {p.data.get(), f.bits, f.group, p.type, static_cast<size_t>(p.out), static_cast<size_t>(p.in), f.coding, p.integers};
}

}  // namespace

bool fit_one_node(std::initializer_list<const LinearWeight*> weights) {
  const bool packed = (*weights.begin())->packed.has_value();
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
  LinearJob job;
  if (format.packed) {
    job.packed = packed_shape_of(format);
    job.owner = format.packed->data;
  } else {
    const mx::array weight = take();
    job.matrix = matrix_of(weight, format);
    if (format.bits) {
      const mx::array scales = take();
      job.matrix.scales = scales.data<void>();
      if (format.coding == Coding::affine) {
        const mx::array biases = take();
        job.matrix.biases = biases.data<void>();
        job.matrix.scale_type = dtype_of(scales, "linear"), job.matrix.bias_type = dtype_of(biases, "linear");
      }
    }
  }
  if (format.bias) {
    const mx::array bias = take();
    job.bias = bias.data<void>(), job.bias_type = dtype_of(bias, "linear");
  }
  return job;
}

kernels::LinearMatrix matrix_of(const mx::array& weight, const WeightFormat& format) {
  kernels::LinearMatrix m;
  m.weight = weight.data<void>();
  m.bits = format.bits, m.group = format.group, m.coding = format.coding;
  m.out = static_cast<size_t>(weight.shape(0));
  m.in = static_cast<size_t>(weight.shape(1));
  if (m.bits) {
    m.in = m.in * 32 / static_cast<size_t>(m.bits);
  } else {
    m.weight_type = dtype_of(weight, "linear");
  }
  return m;
}

size_t LinearWeight::nbytes() const {
  size_t sum = packed ? packed->gpu ? packed->gpu_bytes : packed_matrix_of(*this).bytes() : weight.nbytes();
  for (const auto* part : {&scales, &biases, &bias}) sum += *part ? (*part)->nbytes() : 0;
  return sum;
}

kernels::PackedMatrix packed_matrix_of(const LinearWeight& w) { return packed_shape_of(WeightFormat(w)); }

}  // namespace tersor::ops
