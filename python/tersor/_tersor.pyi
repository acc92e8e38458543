"""The compiled module; python/tersor's own modules are its interface."""

from typing import Dict, List, Optional, Tuple, overload

import mlx.core as mx
import numpy as np

__version__: str
nanobind_version: str
mlx_version_built: str

class Error(ValueError): ...

def mlx_version() -> str: ...
def simd_target() -> str: ...
def accepts(x: mx.array) -> None: ...
def is_tracer(x: mx.array) -> bool: ...
def known_codecs() -> str: ...
def load_calibration(path: str, spec: KvSpec) -> List[LayerCalibration]: ...
def load_model(path: str) -> Tuple[dict, Dict[str, mx.array], dict, dict]: ...

class KvSpec:
    @overload
    @staticmethod
    def parse(text: str) -> KvSpec: ...
    @overload
    @staticmethod
    def parse(keys: str, values: str) -> KvSpec: ...
    @staticmethod
    def recommended() -> KvSpec: ...
    keys: str
    values: str
    keys_full: bool
    values_full: bool
    window: int
    sinks: int
    skip: List[int]
    calibrated: bool

class Choice:
    op: str
    problem: str
    kernel: str
    fast: bool
    reason: str

class LayerCalibration: ...

class LayerCache:
    def __init__(
        self,
        spec: KvSpec,
        full: bool,
        batch: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: mx.Dtype,
        kernels: str = "auto",
        precision: str = "int16",
        calibration: Optional[LayerCalibration] = None,
    ) -> None: ...
    def append(self, k: mx.array, v: mx.array) -> None: ...
    def attend(
        self,
        q: mx.array,
        scale: float = 0.0,
        causal: bool = True,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
        sinks: Optional[mx.array] = None,
        mask: Optional[mx.array] = None,
    ) -> mx.array: ...
    tokens: int
    shape: Tuple[int, int, int, int]
    nbytes: int
    def reserve(self, tokens: int) -> None: ...
    def trimmable(self) -> int: ...
    def trim(self, n: int) -> int: ...
    def rewind(self, n: int) -> None: ...
    def copy(self) -> LayerCache: ...
    def arrays(self) -> List[mx.array]: ...
    def choices(self) -> List[Choice]: ...
    def image(self) -> Tuple[str, List[mx.array]]: ...
    @staticmethod
    def from_image(
        header: str,
        arrays: List[mx.array],
        kernels: str = "auto",
        precision: str = "int16",
        calibration: Optional[LayerCalibration] = None,
    ) -> LayerCache: ...

class ArrayCodec:
    def __init__(self, spec: str, role: str, dim: int, kernels: str = "auto") -> None: ...
    def encode(self, x: mx.array) -> mx.array: ...
    def decode(self, codes: mx.array, tokens: int) -> mx.array: ...
    role: str
    dim: int
    bits_per_element: float

class Fidelity:
    positions: int
    perplexity: float
    perplexity_full: float
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    logit_error_mean: float
    logit_error_max: float
    strict_failed: List[str]

class FidelityMeter:
    def __init__(self) -> None: ...
    def add(self, full: np.ndarray, other: np.ndarray, targets: np.ndarray) -> None: ...
    def result(self) -> Fidelity: ...
