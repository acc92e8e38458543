// linear_tiles for 8-bit codes.
#include "kernels/cuda/linear_tiles.cuh"

namespace tersor::kernels::cuda {

TilesFunction linear_tiles_function_8(int group, Dtype type, int blocks, int columns) {
  return tiles_function<8>(group, type, blocks, columns);
}

}  // namespace tersor::kernels::cuda
