#include "ops/kv_rows.h"

#include <sstream>
#include <stdexcept>

#include "ops/contiguous.h"

namespace tersor::ops {

RowShape RowShape::of(const mx::array& x, int64_t heads, int64_t dim, const std::string& op, const std::string& name) {
  const auto fail = [&] {
    std::ostringstream text;
    text << "[" << op << "] " << name << " has shape " << x.shape() << "; expected [batch, tokens, "
         << (heads ? std::to_string(heads) : "heads") << " * " << dim << "] or [batch, " << (heads ? std::to_string(heads) : "heads")
         << ", tokens, " << dim << "]";
    throw std::invalid_argument(text.str());
  };
  RowShape shape{};
  if (x.ndim() == 3) {
    if (x.shape(2) % dim != 0) fail();
    shape = {x.shape(0), x.shape(2) / dim, x.shape(1), dim, true};
  } else if (x.ndim() == 4) {
    if (x.shape(3) != dim) fail();
    shape = {x.shape(0), x.shape(1), x.shape(2), dim, false};
  } else {
    fail();
  }
  if (shape.heads == 0 || shape.batch == 0 || (heads && shape.heads != heads)) fail();
  return shape;
}

mx::Shape RowShape::with_dim(int64_t d) const {
  const auto i = [](int64_t n) { return static_cast<int>(n); };
  return tokens_major ? mx::Shape{i(batch), i(tokens), i(heads * d)} : mx::Shape{i(batch), i(heads), i(tokens), i(d)};
}

kernels::KvRows rows_of(const mx::array& x, const RowShape& shape) {
  const auto& strides = x.strides();
  kernels::KvRows rows{x.data<void>(), dtype_of(x, "rows"), strides[0], 0, 0};
  rows.head_stride = shape.tokens_major ? shape.dim : strides[1];
  rows.token_stride = shape.tokens_major ? strides[1] : strides[2];
  return rows;
}

mx::array contiguous_rows(const mx::array& x, mx::cpu::CommandEncoder& encoder) {
  return x.strides().back() == 1 || x.shape().back() == 1 ? x : row_contiguous(x, encoder);
}

Dtype dtype_of(const mx::array& x, const std::string& op) {
  if (x.dtype() == mx::float32) return Dtype::f32;
  if (x.dtype() == mx::float16) return Dtype::f16;
  if (x.dtype() == mx::bfloat16) return Dtype::bf16;
  std::ostringstream text;
  text << "[" << op << "] dtype " << x.dtype() << " is not supported: use float32, float16 or bfloat16";
  throw std::invalid_argument(text.str());
}

mx::Dtype mlx_dtype(Dtype type) {
  switch (type) {
    case Dtype::f16: return mx::float16;
    case Dtype::bf16: return mx::bfloat16;
    case Dtype::f32: return mx::float32;
  }
  return mx::float32;
}

}  // namespace tersor::ops
