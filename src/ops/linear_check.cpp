#include "ops/linear_check.h"

#include <sstream>
#include <stdexcept>

#include "ops/kv_rows.h"

namespace tersor::ops {
namespace {

template <class... Parts>
[[noreturn]] void fail(const std::string& op, const Parts&... parts) {
  std::ostringstream text;
  text << "[" << op << "] ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

void check_quantised(const std::string& op, const LinearWeight& w) {
  const int bits = w.bits, group = w.group;
  if (w.coding != Coding::affine && (bits != (w.coding == Coding::mxfp4 ? 4 : 8) || group != 32))
    fail(op, name_of(w.coding), " of ", bits, " bits in groups of ", group, " does not exist: mxfp4 has 4 bits, mxfp8 has 8, groups of 32");
  if (bits < 2 || bits > 8 || bits == 7) fail(op, "weights of ", bits, " bits are not supported: use 2, 3, 4, 5, 6 or 8");
  if (group != 32 && group != 64 && group != 128) fail(op, "weight groups of ", group, " are not supported: use 32, 64 or 128");
  if (w.weight.dtype() != mx::uint32) fail(op, "a quantised weight must be uint32, not ", w.weight.dtype());
  if (w.weight.shape(1) * int64_t{32} % bits) fail(op, "rows of ", w.weight.shape(1), " words do not hold whole ", bits, "-bit codes");
  if (w.in_features() % group) fail(op, "rows of ", w.in_features(), " numbers do not divide into groups of ", group);
  const bool affine = w.coding == Coding::affine;
  if (!w.scales || w.biases.has_value() != affine) fail(op, "a quantised weight needs scales and, if affine, biases");
  const mx::Shape shape{w.out_features(), w.in_features() / group};
  if (!affine && w.scales->dtype() != mx::uint8) fail(op, "scales of ", name_of(w.coding), " must be uint8, not ", w.scales->dtype());
  for (const auto* part : {&w.scales, &w.biases}) {
    if (!*part) continue;
    if (affine) dtype_of(**part, op);
    if ((*part)->shape() != shape) fail(op, "scales and biases must have shape ", shape, ", not ", (*part)->shape());
  }
}

void check_unpacked(const std::string& op, const LinearWeight& w) {
  if (w.weight.ndim() != 2 || !w.weight.size()) fail(op, "a weight must be a matrix [out, in] that is not empty, not ", w.weight.shape());
  if (w.bits) {
    check_quantised(op, w);
  } else {
    dtype_of(w.weight, op);
  }
}

void check_packed(const std::string& op, const LinearWeight& w) {
  if (w.packed->out < 1 || w.packed->in < 1 || !w.packed->data || (w.bits && (w.bits < 2 || w.group < 32 || w.packed->in % w.group)))
    fail(op, "a packed weight has no data or an impossible shape: make it with LinearPacker");
}

}  // namespace

void check_weight(const std::string& op, const LinearWeight& w) {
  if (w.packed) {
    check_packed(op, w);
  } else {
    check_unpacked(op, w);
  }
  if (!w.bias) return;
  dtype_of(*w.bias, op);
  if (w.bias->shape() != mx::Shape{w.out_features()}) fail(op, "bias must have shape [", w.out_features(), "], not ", w.bias->shape());
}

void check_linear(const std::string& op, const mx::array& x, const LinearWeight& w) {
  check_weight(op, w);
  dtype_of(x, op);
  if (x.ndim() == 0 || x.shape(-1) != w.in_features())
    fail(op, "x has shape ", x.shape(), "; the weight takes [..., ", w.in_features(), "]");
}

void check_norm(const std::string& op, const std::optional<RmsNorm>& norm, int in) {
  if (!norm) return;
  dtype_of(norm->weight, op);
  if (norm->weight.shape() != mx::Shape{in}) fail(op, "the norm's weight must have shape [", in, "], not ", norm->weight.shape());
}

std::string LinearWeight::str() const {
  const std::string suffix = !packed ? "" : packed->gpu ? ",gpu" : packed->integers ? ",int16" : ",packed";
  if (coding != Coding::affine) return std::string(name_of(coding)) + suffix;
  if (bits) return "affine:" + std::to_string(bits) + ",group=" + std::to_string(group) + suffix;
  if (packed) return std::string(name_of(packed->type)) + suffix;
  if (weight.dtype() == mx::float32) return "f32";
  if (weight.dtype() == mx::float16) return "f16";
  if (weight.dtype() == mx::bfloat16) return "bf16";
  std::ostringstream text;
  text << weight.dtype();
  return text.str();
}

}  // namespace tersor::ops
