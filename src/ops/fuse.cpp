#include <mlx/allocator.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "ops/gpu_plugin.h"
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

// Inputs: an array and a ticket. Output: the array once the ticket is there.
class After : public Node {
 public:
  using Node::Node;
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }
  const char* name() const override { return "TersorAfter"; }
  int memory_of(int) const override { return 0; }
};

// The computed array whose memory a result is going to share, if there is one.
std::optional<mx::array> memory_of(mx::array a) {
  while (a.has_primitive() && a.status() == mx::array::unscheduled) {
    const auto* node = dynamic_cast<const Node*>(&a.primitive());
    if (!node) return std::nullopt;
    const auto outputs = a.outputs();
    const auto at = std::find_if(outputs.begin(), outputs.end(), [&](const mx::array& x) { return x.id() == a.id(); });
    const int input = node->memory_of(static_cast<int>(at - outputs.begin()));
    if (input < 0) return std::nullopt;
    a = mx::array(a.inputs()[static_cast<size_t>(input)]);
  }
  return a;
}

// A chain of GPU kernels that ends with the scope.
class GpuChain {
 public:
  GpuChain(const GpuPlugin& plugin, mx::Stream stream, const std::vector<std::uintptr_t>& kept) : plugin_(plugin), stream_(stream) {
    plugin_.chain_begin(stream_, kept);
  }
  ~GpuChain() {
    if (!finished_) plugin_.chain_end(stream_, false);
  }
  GpuChain(const GpuChain&) = delete;
  GpuChain& operator=(const GpuChain&) = delete;
  void finish(const std::vector<mx::array>& nodes) {
    plugin_.chain_keep(stream_, nodes);
    finished_ = true;
    plugin_.chain_end(stream_, true);
  }

 private:
  const GpuPlugin& plugin_;
  mx::Stream stream_;
  bool finished_ = false;
};

// Inputs: the tape's. Outputs: a ticket, and the results, sharing memory with the arrays of the tape.
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
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    for (size_t i = 0; i < results_.size(); ++i) outputs[1 + i].copy_shared_buffer(results_[i]);
    encoder.add_temporaries(std::move(nodes_));
    results_.clear();
    nodes_.clear();
  }
  // On a GPU the kernels of the whole step follow one another on the stream as one chain.
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    const GpuPlugin& plugin = require_gpu_plugin("fuse");
    GpuChain chain(plugin, stream(), kept());
    for (mx::array& node : nodes_) {
      auto node_outputs = node.outputs();
      if (!dynamic_cast<const Node*>(&node.primitive())) plugin.chain_other(stream());
      node.primitive().eval_gpu(node.inputs(), node_outputs);
    }
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    for (size_t i = 0; i < results_.size(); ++i) outputs[1 + i].copy_shared_buffer(results_[i]);
    chain.finish(nodes_);
    results_.clear();
    nodes_.clear();
  }
  const char* name() const override { return "TersorFused"; }

 private:
  // The results, and what views of MLX's that are results are views of.
  std::vector<std::uintptr_t> kept() const {
    std::vector<std::uintptr_t> ids;
    for (mx::array a : results_)
      for (;;) {
        ids.push_back(a.id());
        if (!a.has_primitive() || a.status() != mx::array::unscheduled || dynamic_cast<const Node*>(&a.primitive())) break;
        if (a.inputs().empty()) break;
        a = mx::array(a.inputs()[0]);
      }
    return ids;
  }

  std::vector<mx::array> nodes_, results_;
};

}  // namespace

std::vector<mx::array> fuse(const std::vector<mx::array>& results) {
  Tape tape(results);
  if (tape.nodes.empty()) return results;
  const mx::Stream stream = tape.nodes.back().primitive().stream();
  std::vector<std::optional<mx::array>> shared;
  std::vector<mx::array> own;
  std::vector<mx::Shape> shapes{{1}};
  std::vector<mx::Dtype> dtypes{mx::uint8};
  for (const auto& result : results) {
    shared.push_back(memory_of(result));
    if (shared.back()) continue;
    own.push_back(result);
    shapes.push_back(result.shape()), dtypes.push_back(result.dtype());
  }
  const auto outputs = mx::array::make_arrays(std::move(shapes), dtypes,
                                              std::make_shared<Fused>(stream, std::move(tape.nodes), std::move(own)), tape.inputs);
  std::vector<mx::array> fused;
  size_t next = 1;
  for (size_t i = 0; i < results.size(); ++i)
    fused.push_back(shared[i] ? mx::array(results[i].shape(), results[i].dtype(), std::make_shared<After>(stream), {*shared[i], outputs[0]})
                              : outputs[next++]);
  return fused;
}

}  // namespace tersor::ops
