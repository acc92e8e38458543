"""The cache of one attention layer, as mlx_lm's models and tools use it."""

from __future__ import annotations

import weakref
from typing import List, Optional

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from . import attention
from ._native import Error, core
from .settings import Settings, dumps, header_of

_VERSION = 1


class BypassedCache(Error):
    """A model advanced some layers' caches and not others: the result would not be what a report claims."""


class Siblings:
    """The caches of one prompt, or of one batch, which advance together."""

    def __init__(self):
        self._caches: List[weakref.ref] = []
        self._layers = set()
        self._batch: Optional["Siblings"] = None

    def add(self, cache) -> None:
        self._caches.append(weakref.ref(cache))
        self._layers.add(cache.layer)

    def copied(self, memo: dict) -> "Siblings":
        """Those of the deep copy that `memo` belongs to."""
        return memo.setdefault(("tersor.Siblings", id(self)), Siblings())

    def of_batch(self, layer: int) -> "Siblings":
        """Those of the batch that is being made of this prompt and others, layer by layer."""
        if self._batch is None or layer in self._batch._layers:
            self._batch = Siblings()
        return self._batch

    def check(self, first) -> None:
        """Called before the first layer takes new tokens: all others must have taken the ones before."""
        if not self._caches or self._caches[0]() is not first:
            return
        behind = [cache.label for cache in (ref() for ref in self._caches) if cache is not None and cache.progress != first.progress]
        if behind:
            named = ", ".join(behind[:4]) + (f" and {len(behind) - 4} more" if len(behind) > 4 else "")
            raise BypassedCache(
                f"{named}: not advanced by the model's last step, though {first.label} was; "
                "the model bypasses these caches, so nothing it computes with them can be trusted"
            )


def causal_mask(n: int, offset: int, return_array: bool, window_size: Optional[int]):
    """What mlx_lm's own caches answer: None, "causal" or a boolean array [n, offset + n]."""
    if window_size is not None:
        return create_causal_mask(n, offset, window_size=window_size)
    if n == 1:
        return None
    return create_causal_mask(n, offset) if return_array else "causal"


def attend_options(mask, sinks) -> dict:
    """A model's mask as options of the kernels."""
    if isinstance(mask, str):
        if mask != "causal":
            raise Error(f'mask is "{mask}"; "causal", None or an array are known')
        return {"causal": True, "sinks": sinks}
    return {"causal": False, "mask": mask, "sinks": sinks}


class TersorKVCache:
    """Keys and values of one attention layer in compressed form. Implements mlx_lm's cache protocol.

    ``update_and_fetch`` takes keys [B, Hkv, L, Dk] and values [B, Hkv, L, Dv] (float32, float16, bfloat16), encodes them in place and
    returns handles (:class:`tersor.attention.Stored`) that ``scaled_dot_product_attention`` understands. What is kept in full precision
    (window, sinks, skipped layers) is stored in the keys' type.
    """

    batch_class = None  # TersorBatchKVCache, which knows this class; not the other way round
    _held = False  # keeps attention over stored keys possible, and so do its copies

    def __init__(self, settings: Settings, layer: int = 0, full: bool = False, siblings: Optional[Siblings] = None):
        self._settings = settings
        self._layer = layer
        self._full = full
        self._cache = None
        self._dtype = None
        self._siblings = siblings
        if siblings is not None:
            siblings.add(self)

    def hold(self) -> None:
        """Keeps attention over stored keys possible for as long as this cache or a copy of it lives, whatever is restored."""
        if not self._held:
            self._held = True
            attention.hold_for(self)

    # What the dispatcher and the handles ask for.

    @property
    def label(self) -> str:
        return f"layer {self._layer} ({self._settings})"

    @property
    def layer(self) -> int:
        return self._layer

    @property
    def progress(self) -> int:
        """What is the same for all layers between two steps of the model."""
        return self.offset

    @property
    def siblings(self) -> Optional[Siblings]:
        return self._siblings

    @property
    def stores(self) -> str:
        """What it really stores, for reports."""
        return "full" if self._full else str(self._settings)

    @property
    def dtype(self):
        return self._dtype

    def stored_shape(self, role: str) -> tuple:
        batch, heads, key_dim, value_dim = self._cache.shape
        return (batch, heads, self._cache.tokens, key_dim if role == "keys" else value_dim)

    def attend(self, q, v, *, scale, mask=None, sinks=None, stream=None):
        """Attention of q [B, Hq, L, Dk], the last L tokens appended: [B, Hq, L, Dv] in q's type."""
        attention.require_own_values(self, v)
        try:
            return self._cache.attend(q, scale=scale, **attend_options(mask, sinks))
        except ValueError as error:
            raise Error(f"{self.label}: {error}") from error

    # mlx_lm's protocol.

    def update_and_fetch(self, keys, values):
        attention.require_installed(self)
        if keys.ndim != 4 or values.ndim != 4 or keys.shape[:3] != values.shape[:3]:
            raise Error(f"{self.label}: keys {keys.shape} and values {values.shape} must be [batch, heads, tokens, size] of as many tokens")
        if self._cache is None:
            self._start(keys, values)
        elif (keys.shape[0], keys.shape[1], keys.shape[3], values.shape[3]) != self._cache.shape:
            self._refuse(keys, values)
        if self._siblings is not None:
            self._siblings.check(self)
        self._cache.append(keys, values)
        return self.keys_and_values()

    def _start(self, keys, values) -> None:
        self._dtype = keys.dtype
        self._cache = self._settings.layer_cache(
            self._full, self._layer, keys.shape[0], keys.shape[1], keys.shape[3], values.shape[3], keys.dtype
        )

    def _refuse(self, keys, values):
        batch, heads, key_dim, value_dim = self._cache.shape
        raise Error(
            f"{self.label}: the cache holds {batch} sequences of {heads} KV heads of size {key_dim}/{value_dim}, the model brings "
            f"{keys.shape[0]} of {keys.shape[1]} of size {keys.shape[3]}/{values.shape[3]}; it was made for another model or batch"
        )

    def keys_and_values(self):
        return attention.stored(self)

    @property
    def offset(self) -> int:
        return 0 if self._cache is None else self._cache.tokens

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return self.offset == 0

    @property
    def nbytes(self) -> int:
        """Bytes of every array held, spare room included."""
        return 0 if self._cache is None else self._cache.nbytes

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Takes back the last n tokens (at most all); returns how many. Tokens beyond the window's margin that were kept in full
        precision are then read from their codes."""
        n = max(0, min(n, self.offset))
        if n > 0:
            self._cache.rewind(n)
        return n

    def make_mask(self, N: int, return_array: bool = False, window_size: Optional[int] = None):
        return causal_mask(N, self.offset, return_array, window_size)

    @classmethod
    def merge(cls, caches):
        return cls.batch_class.merge(caches)

    def choices(self) -> list:
        """What runs, and why."""
        return [] if self._cache is None else self._cache.choices()

    # Copies and files.

    def copy(self, siblings: Optional[Siblings] = None) -> "TersorKVCache":
        """A cache with memory of its own."""
        other = TersorKVCache(self._settings, self._layer, self._full, siblings)
        other._cache, other._dtype = None if self._cache is None else self._cache.copy(), self._dtype
        if self._held:
            other.hold()
        return other

    def __deepcopy__(self, memo):
        return self.copy(None if self._siblings is None else self._siblings.copied(memo))

    @property
    def state(self) -> list:
        """A line of text and the arrays held; they are the cache's own: evaluate or save them, do not change them."""
        header = {
            "format": "tersor-kv-cache",
            "version": _VERSION,
            "settings": self._settings.to_json(),
            "layer": self._layer,
            "full": self._full,
            "image": None,
        }
        arrays = []
        if self._cache is not None:
            header["image"], arrays = self._cache.image()
            header["dtype"] = str(self._dtype).removeprefix("mlx.core.")
        return [dumps(header), *arrays]

    @state.setter
    def state(self, state) -> None:
        header = header_of(state)
        if header.get("format") != "tersor-kv-cache" or header.get("version") != _VERSION:
            raise Error("the saved cache is not one of this version of Tersor's; make the cache again from its tokens")
        try:
            settings, layer, full = Settings.from_json(header["settings"]), int(header["layer"]), bool(header["full"])
        except (KeyError, TypeError, ValueError) as error:
            raise Error(f"the saved cache's header is damaged ({error}); make the cache again from its tokens") from error
        TersorKVCache.__init__(self, settings, layer, full)
        if header["image"] is not None:
            self._dtype = getattr(mx, header.get("dtype", ""), None)
            self._cache = core.LayerCache.from_image(
                header["image"], list(state[1:]), settings.kernels, settings.precision, settings.calibration_of(layer, full)
            )

    @classmethod
    def from_state(cls, state) -> "TersorKVCache":
        cache = cls.__new__(cls)
        cache.state = state
        cache.hold()  # it belongs to no attachment, whose end must not be its own
        return cache
