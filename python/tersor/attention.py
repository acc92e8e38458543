"""Where attention over compressed caches enters a model.

Models fetch keys and values from a cache and hand them to ``mx.fast.scaled_dot_product_attention``. A compressed cache gives them
:class:`Stored` instead of arrays. While someone needs it (:func:`acquire`), that one function is replaced by :func:`dispatch`, which
attends to what is stored when it is given a `Stored` and calls MLX's function otherwise, so that nothing changes for other models.
"""

from __future__ import annotations

import threading
import weakref

import mlx.core as mx

from ._native import Error

_lock = threading.RLock()
_holders = 0
_original = None


class Unsupported(Error, AttributeError):
    """A model used the keys or values of a compressed cache for something other than attention."""


class Stored:
    """Keys or values of a cache, in the form they are stored in. Has the shape of the array it stands for, but no numbers."""

    __slots__ = ("cache", "role", "__weakref__")

    def __init__(self, cache, role: str):
        self.cache = cache
        self.role = role

    @property
    def shape(self) -> tuple:
        """(batch, KV heads, tokens, head size)"""
        return self.cache.stored_shape(self.role)

    @property
    def ndim(self) -> int:
        return 4

    @property
    def dtype(self):
        return self.cache.dtype

    def astype(self, dtype) -> "Stored":
        """Itself: attention computes in the queries' type whatever keys and values are stored as."""
        return self

    def __getattr__(self, name):
        raise _unsupported(
            self.cache,
            f"the model asks for .{name} of fetched {self.role}, which exist in compressed form only; "
            "attention is all that can be done with them",
        )


def stored(cache) -> tuple:
    """A cache's keys and values as it gives them to a model."""
    return Stored(cache, "keys"), Stored(cache, "values")


def _unsupported(cache, what: str) -> Unsupported:
    return Unsupported(f"{cache.label}: {what}" if cache.label else what)


def require_own_values(cache, v) -> None:
    """Raises Unsupported unless v is what the cache gave to the model."""
    if type(v) is not Stored or v.cache is not cache:
        raise _unsupported(cache, "the model attends with values that are not this cache's")


def dispatch(q, k, v, *args, **kwargs):
    """MLX's ``scaled_dot_product_attention``, and attention over compressed caches."""
    if type(k) is Stored:
        return k.cache.attend(q, v, *args, **kwargs)
    if type(v) is Stored:
        raise _unsupported(v.cache, "the model attends to compressed values with keys of its own")
    return _original(q, k, v, *args, **kwargs)


def installed() -> bool:
    return _holders > 0


def require_installed(cache) -> None:
    """Raises Error when nobody holds attention over stored keys any more."""
    if not installed():
        raise Error(f"{cache.label}: this cache was made for a model that has been restored since; make new caches")


def acquire() -> None:
    """One more holder: attention over compressed caches works until each has released."""
    global _holders, _original
    with _lock:
        if _holders == 0:
            _original = mx.fast.scaled_dot_product_attention
            mx.fast.scaled_dot_product_attention = dispatch
        _holders += 1


def release() -> None:
    """One holder less; the last one puts MLX's own function back."""
    global _holders, _original
    with _lock:
        _holders -= 1
        if _holders == 0:
            if mx.fast.scaled_dot_product_attention is dispatch:  # else someone else has replaced it since
                mx.fast.scaled_dot_product_attention = _original
            _original = None


def hold_for(owner) -> None:
    """Acquires for as long as `owner` lives."""
    acquire()
    weakref.finalize(owner, release)
