#include <algorithm>
#include <numeric>

#include "codec/family.h"
#include "codec/rotation.h"

namespace tersor::codec {
namespace {

std::string names_of(Role role) { return role == Role::keys ? "keys" : "values"; }

[[noreturn]] void refuse(const Spec& spec, const std::string& why) { throw Error("codec " + spec.str() + ": " + why); }

void check_calibration(const Spec& spec, Role role, int dim, const Calibration* c) {
  if (!needs_calibration(spec)) return;
  if (!c)
    refuse(spec,
           "needs a calibration of the model's " + names_of(role) + "; make one with tersor calibrate and name it with --calibration");
  const auto wrong = [&](const char* what, size_t has, size_t wants) {
    refuse(spec, std::string("the calibration has ") + std::to_string(has) + " " + what + " where " + std::to_string(wants) +
                     " are needed; calibrate for this model and codec");
  };
  const auto size = static_cast<size_t>(dim);
  if (spec.family == Family::vecinfer) {
    const size_t wants = (size_t{1} << spec.bits) * static_cast<size_t>(spec.sub);
    if (c->centroids.size() != wants) wrong("codebook numbers", c->centroids.size(), wants);
    if (role == Role::keys && c->smoothing.size() != size) wrong("smoothing factors", c->smoothing.size(), size);
  } else {
    std::vector<int> order = c->channels;
    std::sort(order.begin(), order.end());
    std::vector<int> all(size);
    std::iota(all.begin(), all.end(), 0);
    if (order != all) refuse(spec, "the calibration's channels are not 0 to " + std::to_string(dim - 1) + " in some order");
  }
}

}  // namespace

bool needs_calibration(const Spec& spec) {
  return spec.family == Family::turboquant_split || spec.family == Family::vecinfer || (spec.family == Family::qjl && spec.outliers > 0);
}

Codec::Codec(const Spec& spec, Role role, int dim, Dtype full_dtype)
    : spec_(spec), role_(role), dim_(dim), dtype_(spec.dtype.value_or(full_dtype)), form_(form_of(spec, role, dim, full_dtype)) {
  if (spec.family == Family::full) spec_.bits = static_cast<int>(8 * size_of(dtype_));
}

Codec::~Codec() = default;

const LevelTable* Codec::table(int) const { return nullptr; }
const Rotation* Codec::rotation() const { return nullptr; }
double Codec::sketch_factor(int) const { return 0; }
const Nearest* Codec::index() const { return nullptr; }
std::span<const float> Codec::smoothing() const { return {}; }
const Rotation* Codec::transform() const { return nullptr; }
std::span<const int> Codec::outliers() const { return {}; }

std::span<const float> Codec::centroids() const { return {}; }

int Codec::groups() const {
  switch (spec_.family) {
    case Family::affine: return spec_.axis == Axis::token ? (dim_ + spec_.group - 1) / spec_.group : dim_;
    case Family::mxfp4:
    case Family::mxfp8: return (dim_ + spec_.group - 1) / spec_.group;
    case Family::turboquant: return 1;
    default: return 0;
  }
}

// The rotation, where that is all.
void Codec::map_query(std::span<const double> q, std::span<double> mapped) const {
  std::copy(q.begin(), q.end(), mapped.begin());
  if (rotation()) rotation()->apply(mapped);
}
void Codec::map_output(std::span<const double> stored, std::span<double> output) const {
  std::copy(stored.begin(), stored.end(), output.begin());
  if (rotation()) rotation()->inverse(output);
}

void Codec::roundtrip(std::span<const float> x, std::span<float> y) const {
  const auto tokens = static_cast<size_t>(block_tokens()), stored_dim = static_cast<size_t>(form_.stored_dim);
  if (x.size() != tokens * static_cast<size_t>(dim_) || y.size() != x.size())
    throw Error("codec " + spec_.str() + " encodes " + std::to_string(tokens) + " tokens of " + std::to_string(dim_) +
                " numbers at once, not " + std::to_string(x.size()) + " numbers; give it whole blocks");
  std::vector<Code> codes(tokens * static_cast<size_t>(form_.codes));
  std::vector<float> scalars(static_cast<size_t>(form_.scalars)), stored(tokens * stored_dim);
  encode(x, codes, scalars);
  decode(codes, scalars, stored);
  std::vector<double> output(static_cast<size_t>(dim_));
  for (size_t t = 0; t < tokens; ++t) {
    const std::vector<double> from(stored.begin() + static_cast<std::ptrdiff_t>(t * stored_dim),
                                   stored.begin() + static_cast<std::ptrdiff_t>((t + 1) * stored_dim));
    map_output(from, output);
    std::copy(output.begin(), output.end(), y.begin() + static_cast<std::ptrdiff_t>(t * output.size()));
  }
}

double Codec::bits_per_element() const { return codec::bits_per_element(spec_, role_, dim_, dtype_); }

std::shared_ptr<const Codec> Codec::make(const Spec& spec, Role role, int dim, Dtype full_dtype, const Calibration* calibration) {
  form_of(spec, role, dim, full_dtype);
  check_calibration(spec, role, dim, calibration);
  switch (spec.family) {
    case Family::full: return make_full(spec, role, dim, full_dtype);
    case Family::affine: return spec.axis == Axis::token ? make_affine(spec, role, dim) : make_channel_affine(spec, role, dim);
    case Family::turboquant: return make_turboquant(spec, role, dim);
    case Family::turboquant_split: return make_split(spec, role, dim, *calibration);
    case Family::turboquant_prod: return make_prod(spec, role, dim);
    case Family::turboquant_rvq: return make_rvq(spec, role, dim);
    case Family::qjl: return make_qjl(spec, role, dim, calibration);
    case Family::vecinfer: return make_vecinfer(spec, role, dim, *calibration);
    case Family::mxfp4:
    case Family::mxfp8: return make_microscaled(spec, role, dim);
  }
  throw Error("codec " + spec.str() + " cannot be made");
}

namespace {

// A linear map as a matrix [to][from].
template <class Map>
std::vector<float> matrix_of(size_t from, size_t to, const Map& map) {
  std::vector<float> matrix(to * from);
  std::vector<double> column(to);
  for (size_t c = 0; c < from; ++c) {
    std::vector<double> unit(from, 0.0);
    unit[c] = 1;
    map(unit, column);
    for (size_t r = 0; r < to; ++r) matrix[r * from + c] = static_cast<float>(column[r]);
  }
  return matrix;
}

}  // namespace

std::vector<float> query_matrix(const Codec& codec) {
  return matrix_of(static_cast<size_t>(codec.dim()), static_cast<size_t>(codec.stored_dim()),
                   [&](std::span<const double> q, std::span<double> mapped) { codec.map_query(q, mapped); });
}

std::vector<float> output_matrix(const Codec& codec) {
  return matrix_of(static_cast<size_t>(codec.stored_dim()), static_cast<size_t>(codec.dim()),
                   [&](std::span<const double> stored, std::span<double> output) { codec.map_output(stored, output); });
}

}  // namespace tersor::codec
