"""Codecs over arrays, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import mlx.core as mx

from ._native import Error, core

_MOST_DIM = 1024


@dataclass(frozen=True)
class Encoded:
    """Vectors in compressed form. data: uint8 [batch, heads, bytes], blocks as docs/codecs.md draws them."""

    data: "mx.array"
    tokens: int
    codec: "Codec"

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class Codec:
    """A codec for vectors of one size in one role ("keys" or "values").

    ``encode`` and ``decode`` are nodes of MLX's graph: nothing is computed before it is evaluated.
    """

    def __init__(self, spec: str, dim: int, role: str = "values", kernels: str = "auto"):
        if not isinstance(spec, str):
            raise Error(f'the codec is {spec!r}; give a string like "turboquant:4"')
        if type(dim) is not int or not 1 <= dim <= _MOST_DIM:
            raise Error(f"the size of vectors is {dim!r}; give a number from 1 to {_MOST_DIM}")
        self._codec = core.ArrayCodec(spec, role, dim, kernels)

    def __str__(self) -> str:
        return str(self._codec)

    def __repr__(self) -> str:
        return f"Codec({str(self)!r}, {self.dim}, {self.role!r})"

    @property
    def dim(self) -> int:
        return self._codec.dim

    @property
    def role(self) -> str:
        return self._codec.role

    @property
    def bits_per_element(self) -> float:
        """Scalars included, padding not."""
        return self._codec.bits_per_element

    def encode(self, x: "mx.array") -> Encoded:
        """x: [batch, heads, tokens, dim] of float32, float16 or bfloat16. NaN counts as 0, magnitudes end at 65504."""
        if not isinstance(x, mx.array) or x.ndim != 4 or x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
            raise Error("encode takes an mx.array [batch, heads, tokens, size] of float32, float16 or bfloat16")
        return Encoded(self._codec.encode(x), x.shape[2], self)

    def decode(self, encoded: Encoded) -> "mx.array":
        """float32 [batch, heads, tokens, dim]. Of keys behind a sketch (qjl): vectors whose products with a query are its scores."""
        if not isinstance(encoded, Encoded):
            raise Error(f"decode takes what encode gave, not {type(encoded).__name__}")
        if str(encoded.codec) != str(self) or encoded.codec.dim != self.dim or encoded.codec.role != self.role:
            raise Error(f"these vectors were encoded by {encoded.codec!r}, not by {self!r}")
        return self._codec.decode(encoded.data, encoded.tokens)


def encode(x: "mx.array", codec: str, role: str = "values", kernels: str = "auto") -> Encoded:
    """Vectors [batch, heads, tokens, dim] in compressed form."""
    return Codec(codec, x.shape[-1], role, kernels).encode(x)


def decode(encoded: Encoded) -> "mx.array":
    """float32 [batch, heads, tokens, dim]."""
    return encoded.codec.decode(encoded)


def attend(q: "mx.array", cache, *, scale: Optional[float] = None, mask=None, sinks: Optional["mx.array"] = None) -> "mx.array":
    """Attention of queries over a compressed cache.

    q: [B, Hq, L, Dk], for the last L tokens that ``cache.update_and_fetch`` was given; cache: a TersorKVCache or TersorBatchKVCache;
    scale: 1/sqrt(Dk) unless given; mask: "causal", None (every token is seen), or an array that broadcasts to [B, Hq, L, tokens], boolean
    or additive; sinks: [Hq] learned logits. Returns [B, Hq, L, Dv] in q's type.
    """
    if not hasattr(cache, "keys_and_values"):
        raise Error(f"attend takes a compressed cache, not {type(cache).__name__}")
    _, values = cache.keys_and_values()
    return cache.attend(q, values, scale=q.shape[-1] ** -0.5 if scale is None else scale, mask=mask, sinks=sinks)
