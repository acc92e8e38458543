// Graph nodes that run on the CPU by handing one piece of work to their stream, and several of them as one node.
#pragma once

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>

#include <functional>
#include <vector>

namespace tersor::ops {

namespace mx = mlx::core;

/// Base of this room's primitives. Their eval_cpu gives all work to dispatch() and none to the encoder itself.
class Node : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  /// The input whose memory an output shares, changed in place; -1 where the output has memory of its own.
  virtual int memory_of(int) const { return -1; }
};

namespace detail {
/// Where this thread collects work instead of dispatching it, or null.
inline thread_local std::vector<std::function<void()>>* collected = nullptr;
}  // namespace detail

/// Runs `work` on the encoder's stream, after everything dispatched before it.
template <class F>
void dispatch(mx::cpu::CommandEncoder& encoder, F&& work) {
  if (detail::collected)
    detail::collected->emplace_back(std::forward<F>(work));
  else
    encoder.dispatch(std::forward<F>(work));
}

/// Makes one node of all that must be computed for `results` on one CPU stream: MLX's cost of scheduling a node is paid once. Returns
/// arrays that stand for the results. Everything computed on the way is kept until the node has run, so it suits decode steps, not
/// long chunks. `results` must not be evaluated by themselves afterwards.
/// A result that was changed in place costs next to nothing: MLX's cost of a node grows with the square of its outputs, so it is not one
/// of them but an array of the same memory that waits for the node.
std::vector<mx::array> fuse(const std::vector<mx::array>& results);

}  // namespace tersor::ops
