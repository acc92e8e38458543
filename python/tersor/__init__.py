"""Compressed KV caches for mlx_lm, attended in the form they are stored in.

    import mlx_lm, tersor

    model, tokenizer = mlx_lm.load("…")
    report = tersor.attach(model, "turboquant:4")
    print(mlx_lm.generate(model, tokenizer, prompt="…"), report)

`attach` changes one model until `report.restore()`; `make_cache` gives caches for one prompt and leaves the model alone. Whatever cannot
be compressed is named in the report with the reason.
"""

from ._native import Error, core
from .codec import Codec, decode, encode

__version__ = core.__version__

# What needs mlx_lm, whose import takes a second, is loaded when it is first used.
_LAZY = {
    "attach": "attachment",
    "attached": "attachment",
    "explain": "attachment",
    "make_cache": "attachment",
    "LayerDecision": "attachment",
    "NothingCompressed": "attachment",
    "Report": "attachment",
    "BypassedCache": "kv_cache",
    "TersorKVCache": "batch_cache",
    "TersorBatchKVCache": "batch_cache",
    "Unsupported": "attention",
    "attend": "codec",
    "evaluate": "fidelity",
    "Evaluation": "fidelity",
    "convert": "gguf",
    "KVCacheBuilder": "compat",
    "KVCacheConfig": "compat",
    "KVCacheFactory": "compat",
}

__all__ = ["Codec", "Error", "decode", "encode", "known_codecs", *_LAZY]


def known_codecs() -> str:
    """One line a codec family: name, parameters, what it is."""
    return core.known_codecs()


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'tersor' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
