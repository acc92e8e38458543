// Inputs of CPU kernels that may arrive as strided views.
#pragma once

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>

#include <vector>

namespace tersor::ops {

namespace mx = mlx::core;

/// For eval_cpu: x itself when it is row-contiguous; otherwise a row-contiguous array that the stream fills before whatever
/// is dispatched next (the data of x need not be there yet).
mx::array row_contiguous(const mx::array& x, mx::cpu::CommandEncoder& encoder);

/// For eval_cpu: a node's inputs one after the other, each row-contiguous.
class InputTaker {
 public:
  InputTaker(const std::vector<mx::array>& inputs, mx::Stream stream) : inputs_(inputs), encoder_(mx::cpu::get_command_encoder(stream)) {}
  mx::array operator()() {
    const mx::array& input = inputs_[next_++];
    encoder_.set_input_array(input);
    return row_contiguous(input, encoder_);
  }
  mx::cpu::CommandEncoder& encoder() { return encoder_; }

 private:
  const std::vector<mx::array>& inputs_;
  mx::cpu::CommandEncoder& encoder_;
  size_t next_ = 0;
};

}  // namespace tersor::ops
