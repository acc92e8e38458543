"""Finds out what a model does with its caches by running it on two tokens and then one, without computing anything.

MLX builds graphs lazily: the model's Python code runs, with caches that only take notes, and nothing is evaluated. What every layer
does with fetched keys and values decides whether they can be stored in compressed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Optional

import mlx.core as mx

from . import attention
from ._native import core
from .kv_cache import causal_mask
from .places import Place, plain_places, put


@dataclass
class LayerFacts:
    """What a model did with one cache."""

    updates: int = 0
    attentions: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    dtype: object = None
    failure: Optional[str] = None

    @property
    def bypassed(self) -> bool:
        return self.updates == 0


class Recorder:
    """Which cache the model touched last: an exception that follows is about that one."""

    def __init__(self):
        self.current: Optional[Place] = None


class NotingCache:
    """Has the protocol of a single cache, stores nothing and notes what is asked of it."""

    def __init__(self, recorder: Recorder, place):
        self.facts = LayerFacts()
        self._recorder = recorder
        self.place = place
        self._tokens = 0

    label = None  # messages are about the layer that a report names
    dtype = property(lambda self: self.facts.dtype)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._recorder.current = self.place
        raise attention.Unsupported(f"the model reads .{name} of its cache, which a compressed one does not have")

    def stored_shape(self, role: str) -> tuple:
        f = self.facts
        return (1, f.kv_heads, self._tokens, f.key_dim if role == "keys" else f.value_dim)

    def update_and_fetch(self, keys, values):
        self._recorder.current = self.place
        if core.is_tracer(keys):
            raise attention.Unsupported("the model compiles the function that uses the cache (mx.compile)")
        f = self.facts
        if keys.ndim != 4 or values.ndim != 4:
            raise attention.Unsupported("keys or values are not [batch, heads, tokens, size]")
        if keys.shape[:3] != values.shape[:3]:
            raise attention.Unsupported(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} differ in more than the head size")
        f.updates += 1
        f.kv_heads, f.key_dim, f.value_dim, f.dtype = keys.shape[1], keys.shape[3], values.shape[3], keys.dtype
        self._tokens += keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self):
        self._recorder.current = self.place
        return attention.stored(self)

    def attend(self, q, v, *, scale, mask=None, sinks=None, stream=None):
        self._recorder.current = self.place
        attention.require_own_values(self, v)
        f = self.facts
        if q.ndim != 4 or q.shape[3] != f.key_dim or q.shape[1] % f.kv_heads:
            raise attention.Unsupported(f"queries {tuple(q.shape)} do not fit keys of {f.kv_heads} heads of size {f.key_dim}")
        f.attentions += 1
        if mask is not None and not isinstance(mask, str) and mask.shape[-1] not in (1, self._tokens):
            raise attention.Unsupported(f"a mask of {mask.shape[-1]} columns for {self._tokens} tokens")
        return mx.zeros((*q.shape[:3], f.value_dim), q.dtype)

    @property
    def offset(self) -> int:
        return self._tokens

    def size(self) -> int:
        return self._tokens

    def empty(self) -> bool:
        return self._tokens == 0

    def is_trimmable(self) -> bool:
        return True

    def make_mask(self, N, return_array=False, window_size=None):
        return causal_mask(N, self._tokens, return_array, window_size)


def _reason_of(error: Exception) -> str:
    text = str(error).strip()
    message = text.splitlines()[0].split(" The following argument types")[0] if text else "no message"
    if attention.Stored.__name__ in text:  # an operation that was given what stands for keys or values
        return f"the model computes with fetched keys and values itself instead of handing them to attention ({message.rstrip('.')})"
    return f"the model fails with stored keys and values ({type(error).__name__}: {message})"


def run(model, make_caches: Callable[[], list]) -> Optional[str]:
    """Runs the model on two tokens and on one more with caches of `make_caches`; the reason why it failed, or None."""
    attention.acquire()
    try:
        caches = make_caches()
        model(mx.zeros((1, 2), dtype=mx.int32), cache=caches)
        model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    except attention.Unsupported as error:
        return str(error)
    except Exception as error:  # whatever a model's own code raises: it decides what can be compressed
        return _reason_of(error)
    finally:
        attention.release()
    return None


def trace(model, make_native: Callable[[], list]) -> Dict[Place, LayerFacts]:
    """Facts of every plain KV cache by its place. Places at which the model fails stay native in the next attempt, until it runs.

    make_native: fresh caches of the model's own.
    """
    failures: Dict[Place, LayerFacts] = {}
    while True:
        recorder, noting = Recorder(), {}

        def caches():
            native = make_native()
            for place in plain_places(native):
                if place not in failures:
                    noting[place] = NotingCache(recorder, place)
            return put(native, noting)

        reason = run(model, caches)
        if reason is None:
            return {place: cache.facts for place, cache in noting.items()} | failures
        if recorder.current is None or recorder.current not in noting:
            # Nothing to blame: no cache of this model is safe.
            for place in noting:
                failures[place] = LayerFacts(failure=reason)
            return failures
        facts = noting[recorder.current].facts
        facts.failure = reason
        failures[recorder.current] = facts
