#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <stdexcept>

#include "base/thread_pool.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/float_convert.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

void check_ids(const int64_t* ids, size_t count, size_t rows) {
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= rows)
      throw std::runtime_error("[embed] id " + std::to_string(ids[i]) + " is outside the table of " + std::to_string(rows) + " rows");
}

// Rows `ids` of the matrix to out [count, in] of type `type`.
void gather_rows(const kernels::LinearMatrix& matrix, const int64_t* ids, size_t count, Dtype type, void* out) {
  check_ids(ids, count, matrix.out);
  ThreadPool& pool = ThreadPool::instance();
  const size_t step = 8, stride = (matrix.in + 15) & ~size_t{15};
  float* const rows = workspace(pool.size() * stride);
  pool.run((count + step - 1) / step, [&](size_t task, size_t worker) {
    for (size_t i = task * step; i < std::min(count, task * step + step); ++i) {
      char* const to = static_cast<char*>(out) + i * matrix.in * size_of(type);
      float* const row = type == Dtype::f32 ? reinterpret_cast<float*>(to) : rows + worker * stride;
      kernels::dequantize_row(matrix, static_cast<size_t>(ids[i]), row);
      if (type != Dtype::f32) kernels::from_float(type, row, to, matrix.in);
    }
  });
}

// Inputs: ids (int64), weight, (scales, biases).
class Embed : public mx::Primitive {
 public:
  Embed(mx::Stream stream, int bits, int group) : mx::Primitive(stream), bits_(bits), group_(group) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> parts;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      parts.push_back(row_contiguous(input, encoder));
    }
    kernels::LinearMatrix matrix = matrix_of(parts[1], bits_, group_);
    if (bits_) {
      matrix.scales = parts[2].data<void>(), matrix.scale_type = dtype_of(parts[2], "embed");
      matrix.biases = parts[3].data<void>(), matrix.bias_type = dtype_of(parts[3], "embed");
    }
    mx::array& out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    encoder.set_output_array(out);
    encoder.dispatch([matrix, ids = parts[0].data<int64_t>(), count = parts[0].size(), type = dtype_of(out, "embed"),
                      to = out.data<void>()] { gather_rows(matrix, ids, count, type, to); });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[embed] the CPU kernel was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorEmbed"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const Embed&>(other);
    return bits_ == o.bits_ && group_ == o.group_;
  }

 private:
  int bits_, group_;
};

}  // namespace

mx::array embed(const mx::array& ids, const LinearWeight& weight, mx::Dtype dtype, mx::StreamOrDevice s) {
  check_weight("embed", weight);
  if (!mx::issubdtype(ids.dtype(), mx::integer)) throw std::invalid_argument("[embed] ids must be integers");
  dtype_of(mx::zeros({1}, dtype), "embed");
  mx::Shape shape = ids.shape();
  shape.push_back(weight.in_features());
  if (!ids.size()) return mx::zeros(shape, dtype, s);
  const mx::array wide = mx::astype(ids, mx::int64, s);
  const Choice choice = choose("embed", weight.str(), dtype, 0, Policy::automatic);
  if (!choice.fast) return composed::embed(wide, weight, dtype, s);
  std::vector<mx::array> inputs{wide, weight.weight};
  if (weight.bits) inputs.insert(inputs.end(), {*weight.scales, *weight.biases});
  return mx::array(std::move(shape), dtype, std::make_shared<Embed>(mx::to_stream(s), weight.bits, weight.group), std::move(inputs));
}

}  // namespace tersor::ops
