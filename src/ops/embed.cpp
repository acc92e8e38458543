#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <stdexcept>

#include "base/thread_pool.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/float_convert.h"
#include "ops/gpu_plugin.h"
#include "ops/node.h"
#include "ops/composed.h"
#include "ops/contiguous.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/linear_inputs.h"
#include "ops/workspace.h"

namespace tersor::ops {
namespace {

void check_ids(const int64_t* ids, size_t count, size_t rows) {
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= rows)
      throw std::runtime_error("[embed] id " + std::to_string(ids[i]) + " is outside the table of " + std::to_string(rows) + " rows");
}

// A weight whose rows are wanted, in either form.
struct Table {
  kernels::LinearMatrix matrix;
  kernels::PackedMatrix packed;
  std::shared_ptr<const uint8_t> owner;  // of packed data
  size_t out() const { return owner ? packed.out : matrix.out; }
  size_t in() const { return owner ? packed.in : matrix.in; }
};

// Rows `ids` of it to out [count, in] of type `type`.
void gather_rows(const Table& table, const int64_t* ids, size_t count, Dtype type, void* out) {
  check_ids(ids, count, table.out());
  ThreadPool& pool = ThreadPool::instance();
  const size_t step = 8, in = table.in(), stride = (in + 15) & ~size_t{15};
  float* const rows = workspace(pool.size() * stride);
  pool.run((count + step - 1) / step, [&](size_t task, size_t worker) {
    for (size_t i = task * step; i < std::min(count, task * step + step); ++i) {
      char* const to = static_cast<char*>(out) + i * in * size_of(type);
      float* const row = type == Dtype::f32 ? reinterpret_cast<float*>(to) : rows + worker * stride;
      const auto id = static_cast<size_t>(ids[i]);
      table.owner ? kernels::unpack_row(table.packed, id, row) : kernels::dequantize_row(table.matrix, id, row);
      if (type != Dtype::f32) kernels::from_float(type, row, to, in);
    }
  });
}

// Inputs: ids (int64), then the table's arrays.
class Embed : public Node {
 public:
  Embed(mx::Stream stream, WeightFormat format) : Node(stream), format_(std::move(format)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    InputTaker take(inputs, stream());
    const mx::array ids = take();
    Table table;
    if (format_.packed) {
      table.packed = packed_matrix_of(format_), table.owner = format_.packed->data;
    } else {
      table.matrix = matrix_of(format_, [&take] { return take(); });
    }
    mx::array& out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    take.encoder().set_output_array(out);
    dispatch(take.encoder(), [table, ids = ids.data<int64_t>(), count = ids.size(), type = dtype_of(out, "embed"), to = out.data<void>()] {
      gather_rows(table, ids, count, type, to);
    });
  }
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    require_gpu_plugin("embed").embed(stream(), format_, inputs, outputs);
  }
  const char* name() const override { return "TersorEmbed"; }
  bool is_equivalent(const mx::Primitive& other) const override { return format_ == static_cast<const Embed&>(other).format_; }

 private:
  WeightFormat format_;
};

}  // namespace

mx::array embed(const mx::array& ids, const LinearWeight& weight, mx::Dtype dtype, mx::StreamOrDevice s) {
  check_weight("embed", weight);
  if (!mx::issubdtype(ids.dtype(), mx::integer)) throw std::invalid_argument("[embed] ids must be integers");
  dtype_of(mx::zeros({1}, dtype), "embed");
  mx::Shape shape = ids.shape();
  shape.push_back(weight.in_features());
  if (!ids.size()) return mx::zeros(shape, dtype, s);
  // A GPU's kernel takes ids as argmax gives them.
  const bool whole = mx::default_device() == mx::Device::gpu && ids.dtype() == mx::int32;
  const mx::array wide = whole ? ids : mx::astype(ids, mx::int64, s);
  const Choice choice = choose("embed", weight.str(), dtype, 0, Policy::automatic);
  if (!choice.fast) return composed::embed(mx::astype(wide, mx::int64, s), weight, dtype, s);
  LinearWeight table = weight;
  table.bias.reset();
  std::vector<mx::array> inputs{wide};
  add_inputs(table, inputs);
  return mx::array(std::move(shape), dtype, std::make_shared<Embed>(mx::to_stream(s), WeightFormat(table)), std::move(inputs));
}

}  // namespace tersor::ops
