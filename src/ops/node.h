// Graph nodes that run on the CPU by handing pieces of work to their stream.
#pragma once

#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

namespace tersor::ops {

namespace mx = mlx::core;

/// How much later than at first a piece of work runs: recorded steps run again for the tokens that follow (fuse.h).
struct Later {
  int64_t tokens = 0;
};
using Work = std::function<void(Later)>;

/// Base of this room's primitives. Their eval_cpu gives all work to dispatch() and none to the encoder itself.
class Node : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  /// The input whose memory an output shares, changed in place; -1 where the output has memory of its own.
  virtual int memory_of(int) const { return -1; }
  /// Whether its work may run again: it then depends on how many tokens there are through Later alone.
  virtual bool repeats() const { return true; }
};

namespace detail {
/// Where this thread collects work instead of dispatching it, or null.
inline thread_local std::vector<Work>* collected = nullptr;
}  // namespace detail

/// Runs `work`, which takes a Later or nothing, on the encoder's stream, after everything dispatched before it.
template <class F>
void dispatch(mx::cpu::CommandEncoder& encoder, F&& work) {
  const auto take = [&](auto&& given) {
    if (detail::collected)
      detail::collected->emplace_back(std::forward<decltype(given)>(given));
    else
      encoder.dispatch(std::forward<decltype(given)>(given), Later{});
  };
  if constexpr (std::is_invocable_v<F&, Later>)
    take(std::forward<F>(work));
  else
    take([work = std::forward<F>(work)](Later) mutable { work(); });
}

}  // namespace tersor::ops
