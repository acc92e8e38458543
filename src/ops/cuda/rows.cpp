#include "ops/cuda/rows.h"

#include "kernels/cuda/copy.h"
#include "kernels/cuda/norm_rope.h"

#include <stdexcept>

namespace tersor::ops::cuda {

Dtype type_of(const mx::array& x) {
  if (x.dtype() == mx::float16) return Dtype::f16;
  if (x.dtype() == mx::bfloat16) return Dtype::bf16;
  if (x.dtype() == mx::float32) return Dtype::f32;
  throw std::runtime_error("[cuda] numbers must be f32, f16 or bf16");
}

mx::array dense_rows(Encoder& encoder, const mx::array& x) {
  if (x.flags().row_contiguous && reinterpret_cast<uintptr_t>(mx::gpu_ptr<char>(x)) % 16 == 0) return x;
  mx::array copy = temporary(encoder, x.shape(), x.dtype());
  kernels::cuda::CopyParams p;
  p.from = mx::gpu_ptr<char>(x), p.to = mx::gpu_ptr<char>(copy);
  p.count = static_cast<long long>(x.size()), p.bytes = static_cast<int>(x.itemsize());
  if (x.ndim() > kernels::cuda::kCopyAxes) throw std::runtime_error("[cuda] arrays of more than 8 axes are not supported");
  for (const int size : x.shape()) p.shape[p.axes] = size, p.strides[p.axes] = x.strides()[static_cast<size_t>(p.axes)], ++p.axes;
  add_kernel(encoder, kernels::cuda::copy_strided(p), &p, {x}, {copy});
  return copy;
}

void norm_rows(Encoder& encoder, const mx::array& x, const mx::array& weight, float eps, mx::array& out) {
  const mx::array from = dense_rows(encoder, x), scale = dense_rows(encoder, weight);
  kernels::cuda::RmsNormParams p;
  p.x = mx::gpu_ptr<char>(from), p.weight = mx::gpu_ptr<char>(scale), p.out = mx::gpu_ptr<char>(out);
  p.n = weight.shape(0), p.rows = static_cast<int>(x.size()) / p.n;
  p.eps = eps, p.type = type_of(x), p.weight_type = type_of(weight);
  add_kernel(encoder, kernels::cuda::rms_norm(p), &p, {from, scale}, {out});
}

void rms_norm(mx::Stream stream, float eps, const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  allocate(outputs[0]);
  norm_rows(mx::cu::get_command_encoder(stream), inputs[0], inputs[1], eps, outputs[0]);
}

}  // namespace tersor::ops::cuda
