// linear_rows of 1 to 4 rows for 4-bit codes.
#include "kernels/cuda/linear_few.cuh"

namespace tersor::kernels::cuda {

const void* linear_few_function_4(int group, Dtype scale) { return few_function<4>(group, scale); }

}  // namespace tersor::kernels::cuda
