#include "ops/kv_rows.h"

#include <mlx/allocator.h>

#include <cstring>
#include <sstream>
#include <stdexcept>

namespace tersor::ops {

RowShape RowShape::of(const mx::array& x, int64_t heads, int64_t dim, const std::string& op, const std::string& name) {
  const auto fail = [&] {
    std::ostringstream text;
    text << "[" << op << "] " << name << " has shape " << x.shape() << "; expected [batch, tokens, " << (heads ? std::to_string(heads) : "heads") << " * " << dim
         << "] or [batch, " << (heads ? std::to_string(heads) : "heads") << ", tokens, " << dim << "]";
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

mx::array contiguous_rows(const mx::array& x) {
  if (x.strides().back() == 1 || x.shape().back() == 1) return x;
  mx::array copy(x.shape(), x.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  const size_t item = x.itemsize();
  const char* from = x.data<char>();
  char* to = copy.data<char>();
  std::vector<int64_t> index(x.ndim(), 0);
  for (size_t n = 0; n < x.size(); ++n, to += item) {
    int64_t at = 0;
    for (size_t axis = 0; axis < x.ndim(); ++axis) at += index[axis] * x.strides()[axis];
    std::memcpy(to, from + at * static_cast<int64_t>(item), item);
    for (size_t axis = x.ndim(); axis-- > 0 && ++index[axis] == x.shape(static_cast<int>(axis));) index[axis] = 0;
  }
  return copy;
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
