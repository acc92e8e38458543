// VecInfer (arXiv 2510.06175): product quantisation, of keys after smoothing and a Hadamard transform.
#include <algorithm>

#include "codec/calibrate.h"
#include "codec/family.h"
#include "codec/kmeans.h"
#include "codec/levels.h"
#include "codec/rotation.h"

namespace tersor::codec {
namespace {

class VecInfer final : public Codec {
 public:
  VecInfer(const Spec& spec, Role role, int dim, const Calibration& calibration)
      : Codec(spec, role, dim),
        rotation_(Rotation::without_signs(dim)),
        smoothing_(role == Role::keys ? calibration.smoothing : std::vector<float>(dim, 1.0f)),
        centroids_(calibration.centroids),
        nearest_(centroids_, spec.sub) {}

  std::span<const float> centroids() const override { return centroids_; }
  const Nearest* index() const override { return &nearest_; }
  std::span<const float> smoothing() const override {
    return role() == Role::keys ? std::span<const float>(smoothing_) : std::span<const float>();
  }
  const Rotation* transform() const override { return role() == Role::keys ? &rotation_ : nullptr; }

  void encode(std::span<const float> x, std::span<Code> codes, std::span<float>) const override {
    std::vector<double> y = cleaned(x);
    if (role() == Role::keys) smooth_key(rotation_, smoothing_, y);
    const std::vector<float> narrow(y.begin(), y.end());
    std::vector<float> scratch(nearest_.count());
    for (int i = 0; i < form().codes; ++i) codes[i] = static_cast<Code>(nearest_.of(&narrow[i * spec().sub], scratch));
  }
  void decode(std::span<const Code> codes, std::span<const float>, std::span<float> stored) const override {
    for (int i = 0; i < dim(); ++i) stored[i] = centroids_[static_cast<size_t>(codes[i / spec().sub]) * spec().sub + i % spec().sub];
  }
  // <q, k> = <H diag(lambda) q, H diag(1 / lambda) k>.
  void map_query(std::span<const double> q, std::span<double> mapped) const override {
    for (int i = 0; i < dim(); ++i) mapped[i] = q[i] * smoothing_[i];
    if (role() == Role::keys) rotation_.apply(mapped);
  }
  void map_output(std::span<const double> stored, std::span<double> output) const override {
    std::copy(stored.begin(), stored.end(), output.begin());
    if (role() == Role::keys) rotation_.inverse(output);
    for (int i = 0; i < dim(); ++i) output[i] *= smoothing_[i];
  }

 private:
  Rotation rotation_;
  std::vector<float> smoothing_, centroids_;
  Nearest nearest_;
};

}  // namespace

CodecPtr make_vecinfer(const Spec& spec, Role role, int dim, const Calibration& calibration) {
  return std::make_shared<VecInfer>(spec, role, dim, calibration);
}

}  // namespace tersor::codec
