#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/affine.h"
#include "codec/books.h"
#include "codec/layout.h"
#include "codec/rotation.h"
#include "codec/scalar.h"

namespace tersor::codec {
namespace {

float cleaned(float x) { return std::isnan(x) ? 0.0f : std::clamp(x, -kInputMax, kInputMax); }

// Nearest level; a value on a threshold takes the lower one.
uint8_t nearest(std::span<const float> thresholds, float y) {
  return static_cast<uint8_t>(std::lower_bound(thresholds.begin(), thresholds.end(), y) - thresholds.begin());
}

}  // namespace

Codec::~Codec() = default;

int Codec::groups() const {
  switch (spec_.family) {
    case Family::full: return 0;
    case Family::affine: return (dim_ + spec_.group - 1) / spec_.group;
    case Family::turboquant: return 1;
  }
  return 0;
}

std::shared_ptr<const Codec> Codec::make(const Spec& spec, Role role, int dim, Dtype full_dtype) {
  if (dim < 1 || dim > kMaxDim)
    throw Error("codec " + spec.str() + ": head size " + std::to_string(dim) + " is outside 1 to " + std::to_string(kMaxDim));
  std::shared_ptr<Codec> codec(new Codec);
  codec->spec_ = spec;
  codec->role_ = role;
  codec->dim_ = dim;
  codec->dtype_ = spec.dtype.value_or(full_dtype);
  if (spec.family == Family::full) codec->spec_.bits = static_cast<int>(8 * size_of(codec->dtype_));
  if (spec.family != Family::turboquant) return codec;
  if (dim < 4 || !Rotation::supports(dim))
    throw Error("codec " + spec.str() + " does not fit head size " + std::to_string(dim) + ": turboquant takes sizes " +
                Rotation::supported_sizes() + "; affine and full take any size");
  codec->rotation_ = std::make_shared<Rotation>(dim, spec.rounds, spec.seed);
  const GridBook& book = grid_book(dim, spec.bits);
  codec->grid_ = book.grid;
  codec->grid_step_ = static_cast<float>(book.step);
  for (size_t i = 0; i < book.grid.size(); ++i) {
    codec->levels_.push_back(static_cast<float>(book.grid[i] * book.step));
    if (i > 0) codec->thresholds_.push_back(static_cast<float>((book.grid[i - 1] + book.grid[i]) / 2 * book.step));
  }
  return codec;
}

void Codec::encode(std::span<const float> x, std::span<uint8_t> codes, std::span<float> scalars) const {
  if (spec_.family == Family::affine) {
    std::vector<float> clean(x.size());
    std::transform(x.begin(), x.end(), clean.begin(), cleaned);
    const float top = static_cast<float>((1 << spec_.bits) - 1);
    for (int g = 0; g < groups(); ++g) {
      const size_t begin = static_cast<size_t>(g) * spec_.group, count = std::min<size_t>(spec_.group, dim_ - begin);
      const auto [low, high] = std::minmax_element(clean.begin() + begin, clean.begin() + begin + count);
      const Affine affine = affine_from_range(*low, *high, spec_.bits);
      scalars[g] = affine.scale, scalars[groups() + g] = affine.bias;
      for (size_t i = begin; i < begin + count; ++i)
        codes[i] =
            affine.scale == 0 ? 0 : static_cast<uint8_t>(std::clamp(std::nearbyint((clean[i] - affine.bias) / affine.scale), 0.0f, top));
    }
  } else if (spec_.family == Family::turboquant) {
    std::vector<double> y(x.size());
    std::transform(x.begin(), x.end(), y.begin(), cleaned);
    rotation_->apply(y);
    double norm2 = 0, yc = 0, cc = 0;
    for (const double v : y) norm2 += v * v;
    const double inverse = norm2 > 0 ? std::sqrt(dim_ / norm2) : 0;
    for (int i = 0; i < dim_; ++i) {
      codes[i] = nearest(thresholds_, static_cast<float>(y[i] * inverse));
      yc += y[i] * levels_[codes[i]];
      cc += static_cast<double>(levels_[codes[i]]) * levels_[codes[i]];
    }
    // Keys: the scalar that makes inner products unbiased, |k|^2 / <k, c>. Values: least squares, <v, c> / |c|^2.
    const double scalar = norm2 == 0 ? 0 : role_ == Role::keys ? norm2 / yc : yc / cc;
    scalars[0] = decode_norm(encode_norm(static_cast<float>(scalar)));
  }
}

void Codec::decode(std::span<const uint8_t> codes, std::span<const float> scalars, std::span<float> y) const {
  for (int i = 0; i < dim_; ++i) {
    if (spec_.family == Family::turboquant)
      y[i] = levels_[codes[i]] * scalars[0];
    else
      y[i] = codes[i] * scalars[i / spec_.group] + scalars[groups() + i / spec_.group];
  }
}

void Codec::roundtrip(std::span<const float> x, std::span<float> y) const {
  if (spec_.family == Family::full) {
    std::transform(x.begin(), x.end(), y.begin(), [this](float v) {
      return dtype_ == Dtype::f16 ? half_to_float(float_to_half(v)) : dtype_ == Dtype::bf16 ? bfloat_to_float(float_to_bfloat(v)) : v;
    });
    return;
  }
  std::vector<uint8_t> codes(dim_);
  std::vector<float> scalars(2 * groups());
  encode(x, codes, scalars);
  decode(codes, scalars, y);
  if (!rotation_) return;
  std::vector<double> back(y.begin(), y.end());
  rotation_->inverse(back);
  std::copy(back.begin(), back.end(), y.begin());
}

double Codec::bits_per_element() const {
  const int scalars = spec_.family == Family::affine ? 2 * groups() : spec_.family == Family::turboquant ? 1 : 0;
  return spec_.bits + 16.0 * scalars / dim_;
}

}  // namespace tersor::codec
