// The module tersor._tersor. python/tersor/__init__.py has imported mlx.core, whose types these functions take, before this one.
#include <mlx/array.h>
#include <mlx/version.h>

#include "bindings.h"
#include "kernels/cpu/simd_target.h"
#include "tersor/base.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

NB_MODULE(_tersor, m) {
  m.attr("__version__") = TERSOR_VERSION;
  m.attr("nanobind_version") = TERSOR_NANOBIND_VERSION;
  m.attr("mlx_version_built") =
      std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." + std::to_string(MLX_VERSION_PATCH);
  m.def(
      "mlx_version", [] { return std::string(mlx::core::version()); }, "Version of the MLX library that is loaded.");
  m.def(
      "simd_target", [] { return tersor::kernels::simd_target_name(); }, "Instruction set that the CPU kernels use.");
  m.def(
      "accepts", [](const mlx::core::array&) {}, "Takes an array; a TypeError says that MLX's arrays are of another nanobind.");
  nb::exception<tersor::Error>(m, "Error", PyExc_ValueError);
  tersor::python::bind_spec(m);
  tersor::python::bind_cache(m);
  tersor::python::bind_codec(m);
  tersor::python::bind_fidelity(m);
  tersor::python::bind_model_file(m);
}
