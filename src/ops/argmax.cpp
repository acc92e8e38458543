#include <mlx/primitives.h>

#include <sstream>
#include <stdexcept>

#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "tersor/ops.h"

namespace tersor::ops {
namespace {

// Input: logits. Output: ids.
class Argmax : public Node {
 public:
  Argmax(mx::Stream stream, int count) : Node(stream), count_(count) {}
  void eval_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[argmax] the GPU kernel was asked to run on a CPU stream");
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("argmax").argmax(stream(), count_, inputs, outputs);
  }
  const char* name() const override { return "TersorArgmax"; }
  bool is_equivalent(const mx::Primitive& other) const override { return count_ == static_cast<const Argmax&>(other).count_; }

 private:
  int count_;
};

}  // namespace

bool has_argmax() { return gpu_plugin() != nullptr && mx::default_device() == mx::Device::gpu; }

mx::array argmax(const mx::array& logits, int count, mx::StreamOrDevice s) {
  constexpr int kMostRows = 1024;
  if (logits.ndim() != 2 || logits.dtype() != mx::float32 || logits.shape(0) < 1 || logits.shape(0) > kMostRows || count < 1 ||
      count > logits.shape(1)) {
    std::ostringstream text;
    text << "[argmax] of " << count << " columns of " << logits.dtype() << " " << logits.shape()
         << "; expected float32 [1 to 1024, at least that many]";
    throw std::invalid_argument(text.str());
  }
  return mx::array({logits.shape(0)}, mx::int32, std::make_shared<Argmax>(mx::to_stream(s), count), {logits});
}

}  // namespace tersor::ops
