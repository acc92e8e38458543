// linear_rows of 1 to 4 rows for 8-bit codes.
#include "kernels/cuda/linear_few.cuh"

namespace tersor::kernels::cuda {

const void* linear_few_function_8(int group, Dtype scale) { return few_function<8>(group, scale); }

}  // namespace tersor::kernels::cuda
