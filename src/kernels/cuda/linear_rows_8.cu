// linear_rows for 8-bit codes.
#include "kernels/cuda/linear_rows.cuh"

namespace tersor::kernels::cuda {

const void* linear_rows_function_8(int group, Dtype scale, Dtype x, int rows) { return rows_function<8>(group, scale, x, rows); }

}  // namespace tersor::kernels::cuda
