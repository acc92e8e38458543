#include "tersor/cache.h"

#include <mlx/utils.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "cache/calibration_file.h"
#include "ops/kv_rows.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace tersor::python {
namespace {

using cache::LayerCache;

// A tracer has no memory that could be kept, and a compiled function would append the same tokens forever.
void refuse_tracer(const mx::array& x) {
  if (x.is_tracer()) throw Error("a compressed cache cannot be used inside mx.compile, mx.grad or mx.vmap; call the model outside of them");
}

LayerCache make(const cache::KvSpec& spec, bool full, int batch, int kv_heads, int key_dim, int value_dim, mx::Dtype dtype,
                const std::string& kernels, const std::string& precision, const std::optional<cache::LayerCalibration>& calibration) {
  const codec::Spec none;
  return LayerCache(full ? none : spec.keys, full ? none : spec.values, spec.window, spec.sinks, {batch, kv_heads, key_dim, value_dim},
                    ops::dtype_of_mlx(dtype), ops::parse_policy(kernels), ops::parse_precision(precision),
                    calibration.value_or(cache::LayerCalibration{}));
}

mx::array attend(LayerCache& cache, const mx::array& q, float scale, bool causal, int sliding_window, float soft_cap,
                 const std::optional<mx::array>& sinks, const std::optional<mx::array>& mask) {
  refuse_tracer(q);
  return cache.attend(q, {scale, causal, sliding_window, soft_cap, sinks, mask});
}

void bind_choice(nb::module_& m) {
  using ops::Choice;
  nb::class_<Choice>(m, "Choice", "What runs for one operation, and why.")
      .def_ro("op", &Choice::op)
      .def_ro("problem", &Choice::problem)
      .def_ro("kernel", &Choice::kernel)
      .def_ro("fast", &Choice::fast)
      .def_ro("reason", &Choice::reason);
}

std::vector<cache::LayerCalibration> calibration_for(const std::string& path, const cache::KvSpec& spec) {
  cache::SavedCalibration saved = cache::load_calibration(path, nullptr);
  if (!saved.complete()) throw Error(path + ": was interrupted; go on with `tersor calibrate --out` of the same file");
  if (!spec.calibrated()) throw Error(path + ": is not needed by " + spec.str() + "; leave the calibration out");
  for (const auto role : {codec::Role::keys, codec::Role::values}) {
    const codec::Spec& wanted = role == codec::Role::keys ? spec.keys : spec.values;
    if (cache::needs_calibration(wanted, role) && !(saved.spec(role) == wanted))
      throw Error("codec " + wanted.str() + " needs a calibration of its own for " + (role == codec::Role::keys ? "keys" : "values") +
                  ": " + path + " is for " + saved.spec(role).str() + "; make one with tersor calibrate --kv " + wanted.str());
  }
  return std::move(saved.done);
}

void bind_calibration(nb::module_& m) {
  nb::class_<cache::LayerCalibration>(m, "LayerCalibration", "What calibration found out about one layer.");
  m.def("load_calibration", &calibration_for, "path"_a, "spec"_a,
        "Of every attention layer, from a file of `tersor calibrate` for exactly the codecs of `spec` that need one.");
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def(
      "is_tracer", [](const mx::array& x) { return x.is_tracer(); }, "x"_a, "Whether a transformation (mx.compile, mx.grad) traces x.");
  bind_choice(m);
  bind_calibration(m);
  nb::class_<LayerCache>(m, "LayerCache", "Keys and values of one attention layer, attended in the form they are stored in.")
      .def(
          "__init__",
          [](LayerCache* self, const cache::KvSpec& spec, bool full, int batch, int kv_heads, int key_dim, int value_dim, mx::Dtype dtype,
             const std::string& kernels, const std::string& precision, const std::optional<cache::LayerCalibration>& calibration) {
            new (self) LayerCache(make(spec, full, batch, kv_heads, key_dim, value_dim, dtype, kernels, precision, calibration));
          },
          "spec"_a, "full"_a, "batch"_a, "kv_heads"_a, "key_dim"_a, "value_dim"_a, "dtype"_a, "kernels"_a = "auto", "precision"_a = "int16",
          "calibration"_a = nb::none())
      .def(
          "append",
          [](LayerCache& self, const mx::array& k, const mx::array& v) {
            refuse_tracer(k);
            self.append(k, v);
          },
          "k"_a, "v"_a, "Encodes keys [B, Hkv, L, Dk] and values [B, Hkv, L, Dv] in place.")
      .def("attend", &attend, "q"_a, "scale"_a = 0.0f, "causal"_a = true, "sliding_window"_a = 0, "soft_cap"_a = 0.0f,
           "sinks"_a = nb::none(), "mask"_a = nb::none(), "Attention of [B, Hq, L, Dk] over everything held: [B, Hq, L, Dv].")
      .def_prop_ro("tokens", &LayerCache::tokens)
      .def_prop_ro("shape",
                   [](const LayerCache& self) {
                     const auto& s = self.shape();
                     return nb::make_tuple(s.batch, s.kv_heads, s.key_dim, s.value_dim);
                   })
      .def("reserve", &LayerCache::reserve, "tokens"_a)
      .def("trimmable", &LayerCache::trimmable)
      .def("trim", &LayerCache::trim, "n"_a)
      .def("rewind", &LayerCache::rewind, "n"_a)
      .def("copy", &LayerCache::copy)
      .def_prop_ro("nbytes", &LayerCache::bytes)
      .def("arrays", &LayerCache::arrays)
      .def("choices", &LayerCache::choices)
      .def("image",
           [](const LayerCache& self) {
             auto image = self.image();
             return std::pair(std::move(image.header), std::move(image.arrays));
           })
      .def_static(
          "from_image",
          [](const std::string& header, const std::vector<mx::array>& arrays, const std::string& kernels, const std::string& precision,
             const std::optional<cache::LayerCalibration>& calibration) {
            return LayerCache::from_image({header, arrays}, ops::parse_policy(kernels), ops::parse_precision(precision),
                                          calibration.value_or(cache::LayerCalibration{}));
          },
          "header"_a, "arrays"_a, "kernels"_a = "auto", "precision"_a = "int16", "calibration"_a = nb::none());
}

}  // namespace tersor::python
