"""Loads the compiled part of the package, or says in one sentence why it cannot work with the MLX that is installed."""

import importlib
from pathlib import Path


def _wanted() -> str:
    """The version of MLX that the compiled module beside this file was built for."""
    try:
        return Path(__file__).with_name("_mlx_version").read_text().strip()
    except FileNotFoundError:
        raise ImportError("tersor's compiled module is not here; install the package: pip install . in a checkout") from None


def _mlx_core(wanted: str):
    try:
        return importlib.import_module("mlx.core")
    except ImportError as error:
        raise ImportError(
            f"tersor needs MLX {wanted} with a backend, which cannot be imported ({error}); "
            f"install it: pip install mlx=={wanted} mlx-cpu=={wanted} (or mlx[cuda12]=={wanted})"
        ) from error


def check_versions(built: str, loaded: str) -> None:
    """Raises ImportError unless the module was compiled for the MLX that is loaded: its C++ interface changes between releases."""
    if built != loaded:
        raise ImportError(
            f"tersor was built for MLX {built}, but MLX {loaded} is installed; "
            f"install that version (pip install mlx=={built}) or build tersor again (pip install --force-reinstall --no-deps .)"
        )


def check_arrays(module, mx) -> None:
    """Raises ImportError unless the module takes MLX's arrays: both must be bound by nanobind of one ABI version."""
    try:
        module.accepts(mx.zeros((1,)))
    except TypeError as error:
        raise ImportError(
            f"tersor was bound by nanobind {module.nanobind_version}, whose internals differ from those of the installed "
            f"MLX {mx.__version__}, so that arrays cannot pass between the two; build tersor again with the nanobind that MLX uses"
        ) from error


def load():
    """The module tersor._tersor."""
    wanted = _wanted()
    mx = _mlx_core(wanted)
    # Before the module is loaded: compiled for another MLX it may fail to load at all.
    check_versions(wanted, mx.__version__)
    try:
        module = importlib.import_module("tersor._tersor")
    except ImportError as error:
        raise ImportError(f"tersor's compiled module cannot be loaded beside MLX {mx.__version__}: {error}") from error
    check_versions(module.mlx_version_built, module.mlx_version())
    check_arrays(module, mx)
    return module
