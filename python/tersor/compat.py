"""The names of VeloxQuant-MLX's quick start, so that programs written for it run with the import changed.

from tersor import KVCacheBuilder, KVCacheConfig

config = KVCacheConfig(method="turboquant_rvq", bit_width_inlier=1, seed=42)
caches = KVCacheBuilder.for_model(model, config)
model.make_cache = lambda *_a, **_k: caches
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ._native import Error

_KERNELS = {None: "auto", True: "require", False: "forbid"}


@dataclass(frozen=True)
class KVCacheConfig:
    """What to store keys and values as, in the other library's words.

    method: vecinfer, turboquant_mse, turboquant_prod, turboquant_rvq or qjl. bit_width_inlier: bits a number (of each stage for
    turboquant_rvq). key_sub_dim, key_codebook_bits: of vecinfer, which needs calibration=, a file of ``tersor calibrate``. jl_dim: rows of
    qjl's sketch (2 * head_dim unless given); its values are stored as turboquant:4. head_dim: for that alone, the model knows its own.
    use_metal_kernels: None the fastest kernels there are, True refuse where there are none, False composed MLX operations.
    """

    method: str = "turboquant_rvq"
    head_dim: Optional[int] = None
    bit_width_inlier: Optional[int] = None
    seed: int = 0
    key_sub_dim: int = 4
    key_codebook_bits: int = 8
    jl_dim: Optional[int] = None
    use_metal_kernels: Optional[bool] = None
    calibration: Optional[str] = None

    def __post_init__(self):
        if self.use_metal_kernels not in _KERNELS:
            raise Error(f"use_metal_kernels is {self.use_metal_kernels!r}; use None, True or False")
        self.settings()

    def settings(self) -> dict:
        """The arguments of ``tersor.make_cache`` that this stands for."""
        bits = self.bit_width_inlier
        seed = f",seed={self.seed}" if self.seed else ""
        if self.method == "turboquant_mse":
            kv = f"turboquant:{4 if bits is None else bits}{seed}"
        elif self.method == "turboquant_prod":
            kv = f"turboquant-prod:{4 if bits is None else bits}{seed}"
        elif self.method == "turboquant_rvq":
            kv = "turboquant-rvq:{0}+{0}{1}".format(1 if bits is None else bits, seed)
        elif self.method == "qjl":
            if self.jl_dim is None and self.head_dim is None:
                raise Error("method qjl needs jl_dim=, the rows of its sketch, or head_dim=, of which they are twice")
            kv = f"qjl:{self.jl_dim or 2 * self.head_dim}{seed}/turboquant:4"
        elif self.method == "vecinfer":
            if self.key_codebook_bits % self.key_sub_dim:
                raise Error(
                    f"key_codebook_bits={self.key_codebook_bits} over key_sub_dim={self.key_sub_dim} is no whole number of bits; "
                    "give multiples, like 8 and 4"
                )
            kv = f"vecinfer:{self.key_codebook_bits // self.key_sub_dim},sub={self.key_sub_dim}{seed}"
        else:
            raise Error(f"method {self.method!r} is not one of vecinfer, turboquant_mse, turboquant_prod, turboquant_rvq, qjl")
        return {"kv": kv, "kernels": _KERNELS[self.use_metal_kernels], "calibration": self.calibration}


class KVCacheBuilder:
    """Makes caches of a configuration."""

    @staticmethod
    def for_model(model, config: KVCacheConfig) -> list:
        """One prompt's caches, for ``prompt_cache=`` or ``model.make_cache``."""
        from .attachment import make_cache

        return make_cache(model, **config.settings())


KVCacheFactory = KVCacheBuilder
