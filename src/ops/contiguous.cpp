#include "ops/contiguous.h"

#include "ops/node.h"

#include <mlx/allocator.h>

#include <cstring>
#include <vector>

namespace tersor::ops {
namespace {

void copy_strided(const char* from, char* to, const mx::Shape& shape, const mx::Strides& strides, size_t count, size_t item) {
  std::vector<int> index(shape.size(), 0);
  const char* at = from;
  for (size_t n = 0; n < count; ++n, to += item) {
    std::memcpy(to, at, item);
    for (size_t axis = shape.size(); axis-- > 0;) {  // the next index, carrying to the left
      const auto step = strides[axis] * static_cast<int64_t>(item);
      at += step;
      if (++index[axis] < shape[axis]) break;
      at -= step * shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

mx::array row_contiguous(const mx::array& x, mx::cpu::CommandEncoder& encoder) {
  if (x.flags().row_contiguous) return x;
  mx::array copy(x.shape(), x.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(copy.nbytes()));
  encoder.set_input_array(x);
  encoder.set_output_array(copy);
  dispatch(encoder, [from = x.data<char>(), to = copy.data<char>(), shape = x.shape(), strides = x.strides(), count = x.size(),
                     item = x.itemsize()] { copy_strided(from, to, shape, strides, count, item); });
  encoder.add_temporary(copy);
  return copy;
}

}  // namespace tersor::ops
