"""Loads the compiled part of the package, or says in one sentence why it cannot work with the MLX that is installed."""

import importlib
from pathlib import Path

_WANTED = "0.32.4"


def _mlx_core():
    try:
        return importlib.import_module("mlx.core")
    except ImportError as error:
        raise ImportError(
            f"tersor needs MLX {_WANTED} with a backend, which cannot be imported ({error}); "
            f"install it: pip install mlx=={_WANTED} mlx-cpu=={_WANTED} (or mlx[cuda12]=={_WANTED})"
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
    mx = _mlx_core()
    # The version that the wheel states comes first: a module compiled for another MLX may fail to load at all.
    marker = Path(__file__).with_name("_mlx_version")
    if marker.exists():
        check_versions(marker.read_text().strip(), mx.__version__)
    try:
        module = importlib.import_module("tersor._tersor")
    except ImportError as error:
        raise ImportError(f"tersor's compiled module cannot be loaded beside MLX {mx.__version__}: {error}") from error
    check_versions(module.mlx_version_built, module.mlx_version())
    check_arrays(module, mx)
    return module
