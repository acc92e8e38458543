// What each file of this room adds to the module tersor._tersor.
#pragma once

#include <nanobind/nanobind.h>

namespace tersor::python {

void bind_spec(nanobind::module_& m);
void bind_cache(nanobind::module_& m);
void bind_codec(nanobind::module_& m);
void bind_fidelity(nanobind::module_& m);
void bind_model_file(nanobind::module_& m);

}  // namespace tersor::python
