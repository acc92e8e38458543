// The sizes of each family's codes.
#include <algorithm>

#include "codec/layout.h"
#include "codec/qjl.h"
#include "codec/split.h"

namespace tersor::codec {
namespace {

constexpr int kMinRotated = 4;  // the density of a coordinate needs so many

[[noreturn]] void refuse(const Spec& spec, const std::string& why) { throw Error("codec " + spec.str() + " " + why); }

void check(const Spec& spec, Role role, int dim) {
  if (dim < 1 || dim > kMaxDim)
    throw Error("codec " + spec.str() + ": head size " + std::to_string(dim) + " is outside 1 to " + std::to_string(kMaxDim));
  const auto small = [&](int least) {
    refuse(spec, "does not fit head size " + std::to_string(dim) + ": it takes " + std::to_string(least) +
                     " and more; affine and full take any size");
  };
  switch (spec.family) {
    case Family::turboquant:
    case Family::turboquant_prod:
    case Family::turboquant_rvq:
      if (dim < kMinRotated) small(kMinRotated);
      break;
    case Family::turboquant_split:
      if (std::min(split_upper(spec, dim), dim - split_upper(spec, dim)) < kMinRotated) small(16);
      break;
    case Family::qjl:
      if (role == Role::values)
        refuse(spec,
               "is for keys: a sign sketch gives inner products, not vectors; its authors store values in 2 bits (affine:2,group=32)");
      if (dim < std::max(2, 2 * spec.outliers)) small(std::max(2, 2 * spec.outliers));
      break;
    case Family::vecinfer:
      if (dim % spec.sub != 0)
        refuse(spec, "does not fit head size " + std::to_string(dim) + ": sub=" + std::to_string(spec.sub) + " must divide it");
      break;
    default: break;
  }
  if (spec.centre != 0 && role == Role::values) refuse(spec, "cannot hold values: centre= is for keys, whose mean softmax does not see");
}

}  // namespace

Form form_of(const Spec& spec, Role role, int dim, Dtype full_dtype) {
  check(spec, role, dim);
  const int groups = (dim + spec.group - 1) / spec.group;
  switch (spec.family) {
    case Family::full: return {dim, 0, 1, 0, ScalarForm::none, {{0, dim, static_cast<int>(8 * size_of(spec.dtype.value_or(full_dtype)))}}};
    case Family::affine:
      if (spec.axis == Axis::channel) return {dim, dim, spec.group, 2 * dim, ScalarForm::scale, {{0, dim, spec.bits}}};
      return {dim, dim, 1, 2 * groups, ScalarForm::scale, {{0, dim, spec.bits}}};
    case Family::mxfp4:
    case Family::mxfp8: return {dim, dim, 1, groups, ScalarForm::exponent, {{0, dim, spec.bits}}};
    case Family::turboquant: return {dim, dim, 1, 1, ScalarForm::norm, {{0, dim, spec.bits}}};
    case Family::turboquant_split: {
      const int upper = split_upper(spec, dim);
      return {dim, dim, 1, 2, ScalarForm::norm, {{0, upper, spec.bits2, 0, 0}, {upper, dim - upper, spec.bits, upper, 1}}};
    }
    case Family::turboquant_prod:
      if (spec.bits == 1) return {dim, dim, 1, 1, ScalarForm::norm, {{0, dim, 1}}};
      return {2 * dim, 2 * dim, 1, 2, ScalarForm::norm, {{0, dim, spec.bits - 1, 0, 0}, {dim, dim, 1, dim, 1}}};
    case Family::turboquant_rvq: return {dim, 2 * dim, 1, 1, ScalarForm::norm, {{0, dim, spec.bits, 0, 0}, {dim, dim, spec.bits2, 0, 0}}};
    case Family::qjl: {
      const int rows = spec.sketch_rows, more = qjl_outlier_rows(spec);
      if (more == 0) return {rows, rows, 1, 1, ScalarForm::norm, {{0, rows, 1}}};
      return {rows + more, rows + more, 1, 2, ScalarForm::norm, {{0, rows, 1, 0, 0}, {rows, more, 1, rows, 1}}};
    }
    case Family::vecinfer: return {dim, dim / spec.sub, 1, 0, ScalarForm::none, {{0, dim / spec.sub, spec.bits}}};
  }
  refuse(spec, "cannot be made");
}

double bits_per_element(const Spec& spec, Role role, int dim, Dtype full_dtype) {
  const Form form = form_of(spec, role, dim, full_dtype);
  double bits = static_cast<double>(form.scalars) * bits_of(form.scalar_form) / form.block_tokens;
  for (const Piece& piece : form.pieces) bits += static_cast<double>(piece.count) * piece.bits;
  return bits / dim;
}

}  // namespace tersor::codec
