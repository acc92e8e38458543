#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "base/thread_pool.h"
#include "kernels/cpu/norm_rope.h"
#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

// Numbers below which a parallel region costs more than it saves.
constexpr size_t kTaskNumbers = 16384;

// Inputs: x, weight.
class RmsNormNode : public Node {
 public:
  RmsNormNode(mx::Stream stream, float eps) : Node(stream), eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    const mx::array x = row_contiguous(inputs[0], encoder), weight = row_contiguous(inputs[1], encoder);
    mx::array& out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    encoder.set_input_array(x);
    encoder.set_input_array(weight);
    encoder.set_output_array(out);
    const size_t n = weight.size(), rows = x.size() / n;
    dispatch(encoder, [from = x.data<char>(), to = out.data<char>(), w = weight.data<void>(), type = dtype_of(x, "rms_norm"),
                       weight_type = dtype_of(weight, "rms_norm"), eps = eps_, rows, n] {
      const size_t step = std::max<size_t>(1, kTaskNumbers / n), row_bytes = n * size_of(type);
      ThreadPool::instance().run((rows + step - 1) / step, [&](size_t task, size_t) {
        const size_t row = task * step;
        kernels::rms_norm_rows(type, from + row * row_bytes, weight_type, w, eps, to + row * row_bytes, std::min(step, rows - row), n);
      });
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("rms_norm").rms_norm(stream(), eps_, inputs, outputs);
  }
  const char* name() const override { return "TersorRmsNorm"; }
  bool is_equivalent(const mx::Primitive& other) const override { return eps_ == static_cast<const RmsNormNode&>(other).eps_; }

 private:
  float eps_;
};

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, const Choice& choice, mx::StreamOrDevice s) {
  dtype_of(x, "rms_norm");
  dtype_of(weight, "rms_norm");
  if (x.ndim() == 0 || weight.ndim() != 1 || weight.size() == 0 || x.shape(-1) != weight.shape(0)) {
    std::ostringstream text;
    text << "[rms_norm] x has shape " << x.shape() << " and the weight " << weight.shape() << "; expected [..., n] and [n]";
    throw std::invalid_argument(text.str());
  }
  if (!x.size()) return x;
  constexpr int kGpuStep = 8, kGpuMost = 32768;  // what the GPU kernel's vectors divide into, and its registers hold
  const bool fits = mx::default_device() != mx::Device::gpu || (x.shape(-1) % kGpuStep == 0 && x.shape(-1) <= kGpuMost);
  if (!choice.fast || !fits) return composed::rms_norm(x, weight, eps, s);
  return mx::array(x.shape(), x.dtype(), std::make_shared<RmsNormNode>(mx::to_stream(s), eps), {x, weight});
}

}  // namespace tersor::ops
