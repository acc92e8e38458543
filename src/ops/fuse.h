// Several nodes of one CPU stream as one, and a decode step that runs again without being built again.
#pragma once

#include <mlx/array.h>

#include <memory>
#include <optional>
#include <vector>

namespace tersor::ops {

namespace mx = mlx::core;

/// The work of a fused node, kept with all the memory it uses. Opaque; made by fuse().
class Recording;

struct Fused {
  std::vector<mx::array> results;        // stand for those given
  mx::array done;                        // uint8 [1]: there when the node has run
  std::shared_ptr<Recording> recording;  // null when nothing had to be computed
};
/// Makes one node of all that must be computed for `results` on one CPU stream: MLX's cost of scheduling a node is paid once. Everything
/// computed on the way is kept until the node has run, and as long as the recording lives: it suits decode steps, not long chunks.
/// `results` must not be evaluated by themselves afterwards. `input`: the one input that will differ when the step is repeated.
/// A result that was changed in place costs next to nothing: MLX's cost of a node grows with the square of its outputs, so it is not one
/// of them but an array of the same memory that waits for the node.
Fused fuse(const std::vector<mx::array>& results, const mx::array& input);

struct Repeated {
  mx::array result, done;
};
/// Computes results[0] once more, as one node, for another input of the same shape, `tokens` tokens later than the recording, once `after`
/// is there. Nodes that change memory in place go on with the same memory. Nothing when the recording has not been evaluated yet or holds
/// work that cannot be repeated.
std::optional<Repeated> repeat(const std::shared_ptr<Recording>& recording, const mx::array& input, int64_t tokens, const mx::array& after);

}  // namespace tersor::ops
