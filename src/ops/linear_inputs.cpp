#include "ops/linear_inputs.h"

#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

kernels::PackedMatrix packed_shape_of(const LinearWeight::Packed& p, int bits, int group) {
  return {p.data.get(), bits, group, p.scale_type, static_cast<size_t>(p.out), static_cast<size_t>(p.in)};
}

}  // namespace

void add_inputs(const LinearWeight& w, std::vector<mx::array>& inputs) {
  if (!w.packed) inputs.push_back(w.weight);
  if (w.scales) inputs.insert(inputs.end(), {*w.scales, *w.biases});
  if (w.bias) inputs.push_back(*w.bias);
}

LinearJob job_of(const WeightFormat& format, const std::function<mx::array()>& take) {
  LinearJob job;
  if (format.packed) {
    job.packed = packed_shape_of(*format.packed, format.bits, format.group);
    job.owner = format.packed->data;
  } else {
    const mx::array weight = take();
    job.matrix = matrix_of(weight, format.bits, format.group);
    if (format.bits) {
      const mx::array scales = take(), biases = take();
      job.matrix.scales = scales.data<void>(), job.matrix.scale_type = dtype_of(scales, "linear");
      job.matrix.biases = biases.data<void>(), job.matrix.bias_type = dtype_of(biases, "linear");
    }
  }
  if (format.bias) {
    const mx::array bias = take();
    job.bias = bias.data<void>(), job.bias_type = dtype_of(bias, "linear");
  }
  return job;
}

kernels::LinearMatrix matrix_of(const mx::array& weight, int bits, int group) {
  kernels::LinearMatrix m;
  m.weight = weight.data<void>();
  m.bits = bits, m.group = group;
  m.out = static_cast<size_t>(weight.shape(0));
  m.in = static_cast<size_t>(weight.shape(1));
  if (bits) {
    m.in = m.in * 32 / static_cast<size_t>(bits);
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

kernels::PackedMatrix packed_matrix_of(const LinearWeight& w) { return packed_shape_of(*w.packed, w.bits, w.group); }

}  // namespace tersor::ops
