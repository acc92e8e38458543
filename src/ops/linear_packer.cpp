#include <mlx/device.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
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

// The weight as the kernels see it, without data.
kernels::LinearMatrix shape_of(const LinearWeight& w) {
  kernels::LinearMatrix m;
  m.bits = w.bits, m.group = w.group, m.coding = w.coding;
  m.out = static_cast<size_t>(w.out_features()), m.in = static_cast<size_t>(w.in_features());
  if (!w.bits) m.weight_type = dtype_of(w.weight, "LinearPacker");
  if (w.biases) m.scale_type = dtype_of(*w.scales, "LinearPacker"), m.bias_type = dtype_of(*w.biases, "LinearPacker");
  return m;
}

// The same with its data, evaluated and contiguous; `kept` holds what had to be copied for that.
kernels::LinearMatrix evaluated(const LinearWeight& w, std::vector<mx::array>& kept) {
  const auto data = [&kept](mx::array part) -> const void* {
    part.eval();
    if (!part.flags().row_contiguous) {
      kept.push_back(mx::contiguous(part));
      part = kept.back();
      part.eval();
    }
    return part.data<void>();
  };
  kernels::LinearMatrix m = shape_of(w);
  m.weight = data(w.weight);
  if (w.scales) m.scales = data(*w.scales);
  if (w.biases) m.biases = data(*w.biases);
  return m;
}

}  // namespace

bool LinearPacker::applies(Policy policy) { return policy != Policy::forbid && mx::default_device() == mx::Device::cpu; }

size_t LinearPacker::bytes(const LinearWeight& w) const {
  check_weight("LinearPacker", w);
  return line_up(kernels::packed_shape(shape_of(w), precision_ == Precision::int16).bytes());
}

LinearWeight LinearPacker::pack(const LinearWeight& w) {
  if (w.packed) throw std::invalid_argument("[LinearPacker] the weight " + w.str() + " is packed already");
  const size_t needed = bytes(w);
  // What callers let go of since the last time: the originals of earlier weights.
  if (freed_ >= kReleaseBytes) release(), freed_ = 0;
  freed_ += needed;
  if (needed > size_ - used_) {
    size_ = std::max(needed, kRegion), used_ = 0;
    region_ = huge_memory(size_);
  }
  std::vector<mx::array> kept;
  const kernels::LinearMatrix matrix = evaluated(w, kept);
  const kernels::PackedMatrix shape = kernels::packed_shape(matrix, precision_ == Precision::int16);
  auto* const to = reinterpret_cast<uint8_t*>(region_.get() + used_);
  ThreadPool::instance().run(shape.panels(),
                             [&](size_t panel, size_t) { kernels::pack_panel(matrix, panel, to + panel * shape.panel_bytes()); });
  used_ += needed;
  const LinearWeight::Packed form{w.out_features(), w.in_features(), shape.type, shape.integers, {region_, to}};
  return {mx::array({}, mx::uint8), {}, {}, w.bits, w.group, w.bias, form, w.coding};
}

}  // namespace tersor::ops
