#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>

#include "bindings.h"
#include "model/fidelity.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersor::python {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void add(model::FidelityMeter& meter, const Rows& full, const Rows& other, const Ids& targets) {
  if (full.shape(0) != other.shape(0) || full.shape(1) != other.shape(1) || targets.shape(0) != full.shape(0))
    throw Error("logits of both runs must be [positions, vocabulary] of one shape, and targets [positions]");
  meter.add({full.data(), full.size()}, {other.data(), other.size()}, {targets.data(), targets.size()});
}

}  // namespace

void bind_fidelity(nb::module_& m) {
  using model::Fidelity;
  nb::class_<Fidelity>(m, "Fidelity", "How far two runs' logits are apart, over all positions.")
      .def_ro("positions", &Fidelity::positions)
      .def_ro("perplexity", &Fidelity::perplexity)
      .def_ro("perplexity_full", &Fidelity::perplexity_full)
      .def_ro("kl_mean", &Fidelity::kl_mean)
      .def_ro("kl_p99", &Fidelity::kl_p99)
      .def_ro("kl_max", &Fidelity::kl_max)
      .def_ro("top1_agreement", &Fidelity::top1_agreement)
      .def_ro("logit_error_mean", &Fidelity::logit_error_mean)
      .def_ro("logit_error_max", &Fidelity::logit_error_max)
      .def_prop_ro("strict_failed", &Fidelity::strict_failed, "Bounds of the strict policy that it breaks, by name.");
  nb::class_<model::FidelityMeter>(m, "FidelityMeter", "Collects rows of logits of a full-precision run and another.")
      .def(nb::init<>())
      .def("add", &add, "full"_a, "other"_a, "targets"_a,
           "float32 [positions, vocabulary] twice, and the token that really follows each position, or -1.")
      .def("result", &model::FidelityMeter::result);
}

}  // namespace tersor::python
