// linear_rows for 4-bit codes.
#include "kernels/cuda/linear_rows.cuh"

namespace tersor::kernels::cuda {

const void* linear_rows_function_4(int group, Dtype scale, Dtype x, int rows) { return rows_function<4>(group, scale, x, rows); }

}  // namespace tersor::kernels::cuda
