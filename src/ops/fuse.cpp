#include <unordered_set>

#include "ops/node.h"

namespace tersor::ops {
namespace {

// The primitives behind some results in the order they can run, and the arrays they start from.
struct Tape {
  std::vector<mx::array> nodes;   // one output of each primitive
  std::vector<mx::array> inputs;  // leaves and arrays that are computed already

  explicit Tape(const std::vector<mx::array>& results) {
    for (const auto& result : results) visit(result);
  }

 private:
  // Depth first without recursion: a chain of layers is thousands of nodes deep.
  void visit(const mx::array& result) {
    struct Frame {
      mx::array array;
      size_t next = 0;
    };
    if (!enter(result)) return;
    std::vector<Frame> stack{{result}};
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next == top.array.inputs().size()) {
        nodes.push_back(top.array);
        stack.pop_back();
      } else if (const mx::array input = top.array.inputs()[top.next++]; enter(input)) {
        stack.push_back({input});
      }
    }
  }
  // True when the array's primitive is met for the first time and must run.
  bool enter(const mx::array& a) {
    const bool leaf = !a.has_primitive() || a.status() != mx::array::unscheduled;
    if (!seen_.insert(leaf ? a.id() : a.primitive_id()).second) return false;
    if (leaf) inputs.push_back(a);
    return !leaf;
  }

  std::unordered_set<std::uintptr_t> seen_;
};

// Inputs: the tape's. Outputs: the results, sharing memory with the arrays of the tape.
class Fused : public mx::Primitive {
 public:
  Fused(mx::Stream stream, std::vector<mx::array> nodes, std::vector<mx::array> results)
      : mx::Primitive(stream), nodes_(std::move(nodes)), results_(std::move(results)) {}

  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<std::function<void()>> work;
    const auto flush = [&] {
      if (work.empty()) return;
      encoder.dispatch([work = std::move(work)] {
        for (const auto& part : work) part();
      });
      work.clear();
    };
    for (mx::array& node : nodes_) {
      auto node_outputs = node.outputs();
      // Primitives of MLX dispatch by themselves: what stands before them must be on the stream first.
      const bool ours = dynamic_cast<const Node*>(&node.primitive()) != nullptr;
      if (!ours) flush();
      detail::collected = ours ? &work : nullptr;
      try {
        node.primitive().eval_cpu(node.inputs(), node_outputs);
      } catch (...) {
        detail::collected = nullptr;
        throw;
      }
      detail::collected = nullptr;
    }
    flush();
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_shared_buffer(results_[i]);
    encoder.add_temporaries(std::move(nodes_));
    results_.clear();
    nodes_.clear();
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[fuse] a fused node was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorFused"; }

 private:
  std::vector<mx::array> nodes_, results_;
};

}  // namespace

std::vector<mx::array> fuse(const std::vector<mx::array>& results) {
  Tape tape(results);
  if (tape.nodes.empty()) return results;
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& result : results) shapes.push_back(result.shape()), dtypes.push_back(result.dtype());
  const mx::Stream stream = tape.nodes.back().primitive().stream();
  return mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<Fused>(stream, std::move(tape.nodes), results), tape.inputs);
}

}  // namespace tersor::ops
