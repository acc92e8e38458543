#include <mlx/device.h>
#include <mlx/memory.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <stdexcept>

#include "base/huge_memory.h"
#include "base/thread_pool.h"
#include "ops/kv_rows.h"
#include "ops/linear_check.h"
#include "ops/linear_inputs.h"

namespace tersor::ops {
namespace {

constexpr size_t kRegion = size_t{32} << 20;
// Originals of this many bytes go back to the system at a time: what both copies may take at most, besides one weight.
constexpr size_t kReleaseBytes = size_t{4} << 20;

void release() {
  mx::clear_cache();
  release_freed_memory();
}

// Each weight starts at a cache line of its own.
size_t line_up(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

LinearWeight::Packed packed_form(const LinearWeight& w) {
  const Dtype scales = dtype_of(*w.scales, "LinearPacker"), biases = dtype_of(*w.biases, "LinearPacker");
  return {w.out_features(), w.in_features(), scales == biases ? scales : Dtype::f32, nullptr};
}

// The weight as the kernels see it; its arrays are evaluated and contiguous.
kernels::LinearMatrix evaluated(const LinearWeight& w) {
  mx::eval({w.weight, *w.scales, *w.biases});
  for (const mx::array* part : {&w.weight, &*w.scales, &*w.biases})
    if (!part->flags().row_contiguous) throw std::invalid_argument("[LinearPacker] weights must be contiguous arrays");
  kernels::LinearMatrix m = matrix_of(w.weight, w.bits, w.group);
  m.scales = w.scales->data<void>(), m.scale_type = dtype_of(*w.scales, "LinearPacker");
  m.biases = w.biases->data<void>(), m.bias_type = dtype_of(*w.biases, "LinearPacker");
  return m;
}

}  // namespace

bool LinearPacker::applies(Policy policy, Precision precision) {
  return precision == Precision::int16 && policy != Policy::forbid && mx::default_device() == mx::Device::cpu;
}

bool LinearPacker::takes(const LinearWeight& w) { return w.bits > 0 && !w.packed; }

size_t LinearPacker::bytes(const LinearWeight& w) {
  check_weight("LinearPacker", w);
  LinearWeight packed = w;
  packed.packed = packed_form(w);
  return line_up(packed_matrix_of(packed).bytes());
}

LinearWeight LinearPacker::pack(const LinearWeight& w) {
  if (!takes(w)) throw std::invalid_argument("[LinearPacker] the weight " + w.str() + " cannot be packed");
  const size_t needed = bytes(w);
  // What callers let go of since the last time: the originals of earlier weights.
  if (freed_ >= kReleaseBytes) release(), freed_ = 0;
  freed_ += needed;
  if (needed > size_ - used_) {
    size_ = std::max(needed, kRegion), used_ = 0;
    region_ = huge_memory(size_);
  }
  const kernels::LinearMatrix matrix = evaluated(w);
  const kernels::PackedMatrix shape = kernels::packed_shape(matrix);
  auto* const to = reinterpret_cast<uint8_t*>(region_.get() + used_);
  ThreadPool::instance().run(shape.panels(),
                             [&](size_t panel, size_t) { kernels::pack_panel(matrix, panel, to + panel * shape.panel_bytes()); });
  used_ += needed;
  LinearWeight packed{mx::array({}, mx::uint8), {}, {}, w.bits, w.group, w.bias, packed_form(w)};
  packed.packed->data = {region_, to};
  return packed;
}

}  // namespace tersor::ops
