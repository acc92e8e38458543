// Inputs of CPU kernels that may arrive as strided views.
#pragma once

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>

namespace tersor::ops {

namespace mx = mlx::core;

/// For eval_cpu: x itself when it is row-contiguous; otherwise a row-contiguous array that the stream fills before whatever
/// is dispatched next (the data of x need not be there yet).
mx::array row_contiguous(const mx::array& x, mx::cpu::CommandEncoder& encoder);

}  // namespace tersor::ops
