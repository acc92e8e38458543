// linear_tiles for 4-bit codes.
#include "kernels/cuda/linear_tiles.cuh"

namespace tersor::kernels::cuda {

TilesFunction linear_tiles_function_4(int group, Dtype type, int blocks, int columns) {
  return tiles_function<4>(group, type, blocks, columns);
}

}  // namespace tersor::kernels::cuda
