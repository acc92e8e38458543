#include "ops/fuse.h"

#include <mlx/allocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ops/contiguous.h"
#include "ops/gpu_plugin.h"
#include "ops/node.h"

namespace tersor::ops {

using Part = std::shared_ptr<const std::vector<Work>>;

class Recording {
 public:
  std::vector<mx::array> nodes;    // one output of each primitive, in order
  std::vector<mx::array> results;  // of them, those with memory of their own
  std::vector<mx::array> copies;   // of inputs that were not contiguous
  std::optional<mx::array> input;  // the one that differs, if the nodes read it
  std::vector<Part> parts;         // set by the node's evaluation: what was put on the stream at once
  bool evaluated = false, repeatable = false;
};

namespace {

// A fused step is never made part of another one: its results may be asked for by themselves.
class Whole : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[fuse] a fused step of a CPU stream was asked to run on a GPU stream");
  }
};

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
    const bool leaf = !a.has_primitive() || a.status() != mx::array::unscheduled || dynamic_cast<const Whole*>(&a.primitive());
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

void run(const std::vector<Work>& part, Later later) {
  for (const Work& work : part) work(later);
}

// A primitive of MLX that computed nothing: its result is a view of its input.
bool is_view(const mx::array& node) {
  constexpr std::array<std::string_view, 6> kViews = {"Broadcast", "ExpandDims", "Reshape", "Slice", "Squeeze", "Transpose"};
  return std::find(kViews.begin(), kViews.end(), node.primitive().name()) != kViews.end() &&
         node.buffer().ptr() == node.inputs()[0].buffer().ptr();
}

// Evaluates one node, whose work goes to `work`, or to the stream when that is null.
void evaluate(mx::array& node, std::vector<Work>* work) {
  struct Collect {
    explicit Collect(std::vector<Work>* to) { detail::collected = to; }
    ~Collect() { detail::collected = nullptr; }
  } collect(work);
  auto outputs = node.outputs();
  node.primitive().eval_cpu(node.inputs(), outputs);
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
class FusedNode : public Whole {
 public:
  FusedNode(mx::Stream stream, std::shared_ptr<Recording> recording) : Whole(stream), recording_(std::move(recording)) {}

  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const size_t temporaries = encoder.temporaries().size();
    Recording& r = *recording_;
    r.repeatable = r.input.has_value();
    std::vector<Work> work;
    for (mx::array& node : r.nodes) {
      const auto* const ours = dynamic_cast<const Node*>(&node.primitive());
      if (!ours) flush(encoder, work);  // it dispatches by itself: what stands before it must be on the stream first
      evaluate(node, ours ? &work : nullptr);
      r.repeatable = r.repeatable && (ours ? ours->repeats() : is_view(node));
    }
    flush(encoder, work);
    r.copies.assign(encoder.temporaries().begin() + static_cast<std::ptrdiff_t>(temporaries), encoder.temporaries().end());
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    for (size_t i = 0; i < r.results.size(); ++i) outputs[1 + i].copy_shared_buffer(r.results[i]);
    r.evaluated = true;
    recording_.reset();
  }
  // On a GPU the kernels of the whole step follow one another on the stream as one chain.
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>& outputs) override {
    const GpuPlugin& plugin = require_gpu_plugin("fuse");
    Recording& r = *recording_;
    GpuChain chain(plugin, stream(), kept());
    for (mx::array& node : r.nodes) {
      auto node_outputs = node.outputs();
      if (!dynamic_cast<const Node*>(&node.primitive())) plugin.chain_other(stream());
      node.primitive().eval_gpu(node.inputs(), node_outputs);
    }
    outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
    for (size_t i = 0; i < r.results.size(); ++i) outputs[1 + i].copy_shared_buffer(r.results[i]);
    chain.finish(r.nodes);
    r.nodes.clear(), r.results.clear();
    recording_.reset();
  }
  const char* name() const override { return "TersorFused"; }

 private:
  // The recording, and with it all memory, stays until the stream has run the work.
  void flush(mx::cpu::CommandEncoder& encoder, std::vector<Work>& work) {
    if (work.empty()) return;
    const auto part = std::make_shared<const std::vector<Work>>(std::exchange(work, {}));
    recording_->parts.push_back(part);
    encoder.dispatch([recording = recording_, part] { run(*part, {}); });
  }

  // The results, and what views of MLX's that are results are views of.
  std::vector<std::uintptr_t> kept() const {
    std::vector<std::uintptr_t> ids;
    for (mx::array a : recording_->results)
      for (;;) {
        ids.push_back(a.id());
        if (!a.has_primitive() || a.status() != mx::array::unscheduled || dynamic_cast<const Node*>(&a.primitive())) break;
        if (a.inputs().empty()) break;
        a = mx::array(a.inputs()[0]);
      }
    return ids;
  }

  std::shared_ptr<Recording> recording_;
};

// Inputs: the input of this run, a ticket. Outputs: a ticket, the result.
class RepeatNode : public Whole {
 public:
  RepeatNode(mx::Stream stream, std::shared_ptr<Recording> recording, int64_t tokens)
      : Whole(stream), recording_(std::move(recording)), tokens_(tokens) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (mx::array& output : outputs) output.set_data(mx::allocator::malloc(output.nbytes()));
    const mx::array input = row_contiguous(inputs[0], encoder);
    encoder.dispatch([recording = std::move(recording_), from = input.data<void>(), to = outputs[1].data<void>(), tokens = tokens_] {
      std::memcpy(recording->input->data<void>(), from, recording->input->nbytes());
      for (const Part& part : recording->parts) run(*part, Later{tokens});
      std::memcpy(to, recording->results[0].data<void>(), recording->results[0].nbytes());
    });
  }
  const char* name() const override { return "TersorRepeat"; }

 private:
  std::shared_ptr<Recording> recording_;
  int64_t tokens_;
};

}  // namespace

Fused fuse(const std::vector<mx::array>& results, const mx::array& input) {
  Tape tape(results);
  if (tape.nodes.empty()) return {results, mx::array({uint8_t{0}}), nullptr};
  const mx::Stream stream = tape.nodes.back().primitive().stream();
  auto recording = std::make_shared<Recording>();
  std::vector<std::optional<mx::array>> shared;
  std::vector<mx::Shape> shapes{{1}};
  std::vector<mx::Dtype> dtypes{mx::uint8};
  for (const auto& result : results) {
    shared.push_back(memory_of(result));
    if (shared.back()) continue;
    recording->results.push_back(result);
    shapes.push_back(result.shape()), dtypes.push_back(result.dtype());
  }
  for (const auto& a : tape.inputs)
    if (a.id() == input.id()) recording->input = input;
  recording->nodes = std::move(tape.nodes);
  const auto outputs =
      mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<FusedNode>(stream, recording), std::move(tape.inputs));
  Fused fused{{}, outputs[0], std::move(recording)};
  size_t next = 1;
  for (size_t i = 0; i < results.size(); ++i)
    fused.results.push_back(
        shared[i] ? mx::array(results[i].shape(), results[i].dtype(), std::make_shared<After>(stream), {*shared[i], outputs[0]})
                  : outputs[next++]);
  return fused;
}

std::optional<Repeated> repeat(const std::shared_ptr<Recording>& recording, const mx::array& input, int64_t tokens,
                               const mx::array& after) {
  const Recording& r = *recording;
  if (!r.evaluated || !r.repeatable || r.results.size() != 1 || !r.results[0].flags().row_contiguous) return std::nullopt;
  if (input.shape() != r.input->shape() || input.dtype() != r.input->dtype()) return std::nullopt;
  const mx::array& result = r.results[0];
  auto outputs =
      mx::array::make_arrays({{1}, result.shape()}, {mx::uint8, result.dtype()},
                             std::make_shared<RepeatNode>(r.nodes.back().primitive().stream(), recording, tokens), {input, after});
  return Repeated{outputs[1], outputs[0]};
}

}  // namespace tersor::ops
