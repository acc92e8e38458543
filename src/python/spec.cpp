#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "tersor/cache.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersor::python {

void bind_spec(nb::module_& m) {
  using cache::KvSpec;
  nb::class_<KvSpec>(m, "KvSpec", "What a cache keeps and how: codecs of keys and values, window, sinks, layers kept in full precision.")
      .def_static(
          "parse", [](const std::string& text) { return KvSpec::parse(text); }, "text"_a)
      .def_static(
          "parse", [](const std::string& keys, const std::string& values) { return KvSpec::parse(keys, values); }, "keys"_a, "values"_a)
      .def_static("recommended", &KvSpec::recommended)
      .def_prop_ro("keys", [](const KvSpec& s) { return s.keys.str(); })
      .def_prop_ro("values", [](const KvSpec& s) { return s.values.str(); })
      .def_prop_ro("keys_full", [](const KvSpec& s) { return s.keys.family == codec::Family::full; })
      .def_prop_ro("values_full", [](const KvSpec& s) { return s.values.family == codec::Family::full; })
      .def_rw("window", &KvSpec::window)
      .def_rw("sinks", &KvSpec::sinks)
      .def_rw("skip", &KvSpec::skip)
      .def_prop_ro("calibrated", &KvSpec::calibrated)
      .def("__str__", &KvSpec::str);
  m.def(
      "known_codecs", [] { return codec::known_codecs(); }, "One line a codec family.");
}

}  // namespace tersor::python
