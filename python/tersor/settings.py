"""What a user asks of a cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Optional, Sequence

from ._native import Error, core


@lru_cache(maxsize=8)
def _calibration(path: str, kv: str):
    return core.load_calibration(path, parse_spec(kv, None, None))


_MOST_TOKENS = 1 << 24  # of a window or of sinks


def parse_spec(kv: Optional[str], keys: Optional[str], values: Optional[str]) -> "core.KvSpec":
    """A setting from one string ("turboquant:4", "turboquant:6/turboquant:4"), or one for keys and one for values."""
    if kv is not None and (keys is not None or values is not None):
        raise Error("give either kv= or keys= and values=, not both")
    if kv is None and keys is None and values is None:
        return core.KvSpec.recommended()
    for name, text in (("kv", kv), ("keys", keys), ("values", values)):
        if text is not None and not isinstance(text, str):
            raise Error(f'{name}= is {text!r}; give a string like "turboquant:4"')
    if kv is None:
        if keys is None or values is None:
            raise Error(f"{'keys' if keys is None else 'values'}= is missing; give both, or kv= for both alike")
        return core.KvSpec.parse(keys, values)
    if kv == "recommended":
        return core.KvSpec.recommended()
    if "/" in kv:
        return core.KvSpec.parse(*kv.split("/", 1))
    return core.KvSpec.parse(kv)


@dataclass(frozen=True)
class Settings:
    """How the caches of a model are to store what they are given. Immutable; caches share it."""

    keys: str
    values: str
    window: int = 0
    sinks: int = 0
    kernels: str = "auto"
    precision: str = "int16"
    calibration: Optional[str] = None  # a file of `tersor calibrate`
    skip: tuple = ()
    spec: object = field(default=None, compare=False, repr=False)

    @classmethod
    def make(
        cls,
        kv: Optional[str] = None,
        *,
        keys: Optional[str] = None,
        values: Optional[str] = None,
        window: Optional[int] = None,
        sinks: Optional[int] = None,
        skip: Optional[Sequence[int]] = None,
        kernels: str = "auto",
        precision: str = "int16",
        calibration: Optional[str] = None,
    ) -> "Settings":
        spec = parse_spec(kv, keys, values)
        for name, value in (("window", window), ("sinks", sinks)):
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
                raise Error(f"{name}= is {value!r}; give a number of tokens, 0 to {_MOST_TOKENS}")
            setattr(spec, name, value)
        if skip is not None:
            if isinstance(skip, (str, bytes)) or not hasattr(skip, "__iter__") or not all(type(layer) is int for layer in skip):
                raise Error(f"skip= is {skip!r}; give a list of layers like [0, -1]")
            spec.skip = list(skip)
        if kernels not in ("auto", "require", "forbid"):
            raise Error(f'kernels= is {kernels!r}; use "auto", "require" or "forbid"')
        if precision not in ("int16", "exact"):
            raise Error(f'precision= is {precision!r}; use "int16" or "exact"')
        if spec.calibrated and calibration is None:
            raise Error(f"codec {spec} needs a calibration of the model; make one with `tersor calibrate` and name it: calibration=")
        path = None if calibration is None else str(calibration)
        if path is not None:
            _calibration(path, f"{spec.keys}/{spec.values}")  # what is wrong with it shows now, not when a layer asks for it
        return cls(spec.keys, spec.values, spec.window, spec.sinks, kernels, precision, path, tuple(spec.skip), spec)

    def __str__(self) -> str:
        return str(self.spec)

    @property
    def compresses(self) -> bool:
        return not (self.spec.keys_full and self.spec.values_full)

    def skipped(self, layers: int) -> set:
        """Attention layers that stay in full precision, counted from 0."""
        found = set()
        for layer in self.skip:
            if not -layers <= layer < layers:
                raise Error(f"skip= names layer {layer}, but the model has {layers} attention layers")
            found.add(layer % layers)
        return found

    def layer_cache(self, full: bool, layer: int, batch: int, kv_heads: int, key_dim: int, value_dim: int, dtype):
        """The native cache of one layer."""
        return core.LayerCache(
            self.spec,
            full,
            batch,
            kv_heads,
            key_dim,
            value_dim,
            dtype,
            self.kernels,
            self.precision,
            self.calibration_of(layer, full),
        )

    def calibration_of(self, layer: int, full: bool):
        """What calibration found out about a layer; None where its codec needs nothing."""
        if not self.spec.calibrated or full:
            return None
        layers = _calibration(self.calibration, f"{self.keys}/{self.values}")
        if layer >= len(layers):
            raise Error(f"{self.calibration} has {len(layers)} layers, but layer {layer} of the model needs one; calibrate this model")
        return layers[layer]

    def to_json(self) -> dict:
        return {
            "keys": self.keys,
            "values": self.values,
            "window": self.window,
            "sinks": self.sinks,
            "kernels": self.kernels,
            "precision": self.precision,
            "calibration": self.calibration,
            "skip": list(self.skip),
        }

    @classmethod
    def from_json(cls, saved: dict) -> "Settings":
        try:
            return cls.make(**saved)
        except TypeError as error:
            raise Error(f"the saved cache's settings are damaged ({error}); make the cache again") from error


def dumps(header: dict) -> str:
    return json.dumps(header, sort_keys=True, separators=(",", ":"))


def header_of(state) -> dict:
    """The header that a cache's state begins with."""
    try:
        header = json.loads(state[0])
    except (TypeError, ValueError, LookupError) as error:
        raise Error("the saved cache has no header of Tersor's; it is damaged or another program's") from error
    if not isinstance(header, dict):
        raise Error("the saved cache has no header of Tersor's; it is damaged or another program's")
    return header
