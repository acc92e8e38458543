"""Puts compressed caches into a model, and takes them out again."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from mlx_lm.models import cache as mlx_cache

from . import attention
from ._native import Error
from .batch_cache import TersorBatchKVCache
from .kv_cache import Siblings, TersorKVCache
from .places import Place, all_places, name_of, put
from .settings import Settings
from .trace import LayerFacts, trace

_lock = threading.RLock()
_attached: "weakref.WeakValueDictionary[int, Report]" = weakref.WeakValueDictionary()
_ABSENT = object()


class NothingCompressed(Error):
    """No layer of the model can have a compressed cache; the message says why."""


@dataclass(frozen=True)
class LayerDecision:
    """What was decided about one of a model's caches."""

    place: Place
    native: str  # class of the model's own cache
    requested: str
    effective: str  # what the cache stores now
    reason: str = ""  # why the two differ
    kernels: Tuple[str, ...] = ()  # what runs

    @property
    def compressed(self) -> bool:
        return not self.reason

    @property
    def name(self) -> str:
        return name_of(self.place)


def register() -> None:
    """Lets mlx_lm's load_prompt_cache find our classes, which it looks up by name."""
    for cls in (TersorKVCache, TersorBatchKVCache):
        setattr(mlx_cache, cls.__name__, cls)


def _model_name(model) -> str:
    kind = getattr(model, "model_type", None)
    return f"{type(model).__module__.rsplit('.', 1)[-1]}.{type(model).__name__}" if not isinstance(kind, str) else kind


class Plan:
    """Which of a model's caches are replaced, and by what; decided once, before anything is computed."""

    def __init__(self, model, settings: Settings, native_make):
        self.settings = settings
        self._native_make = native_make
        facts = trace(model, native_make)
        self.order = {place: i for i, place in enumerate(sorted(facts))}
        skipped = settings.skipped(len(self.order))
        self.decisions = [self._decide(place, entry, facts.get(place), skipped) for place, entry in all_places(native_make())]
        self.replaced = [d.place for d in self.decisions if d.compressed or self.order.get(d.place) in skipped]
        self.skipped = {place for place, i in self.order.items() if i in skipped}

    def _decide(self, place: Place, entry, facts: Optional[LayerFacts], skipped) -> LayerDecision:
        native, wanted = type(entry).__name__, str(self.settings)

        def declined(reason: str) -> LayerDecision:
            return LayerDecision(place, native, wanted, native, reason)

        if facts is None:
            return declined(_why_native(entry))
        if facts.failure is not None:
            return declined(facts.failure)
        if facts.bypassed:
            return declined("the model does not put keys into this cache")
        if facts.attentions == 0:
            return declined("the model uses fetched keys for something other than attention")
        full = self.order[place] in skipped
        try:
            cache = self.settings.layer_cache(full, self.order[place], 1, facts.kv_heads, facts.key_dim, facts.value_dim, facts.dtype)
        except Error as error:
            if self.settings.kernels == "require":
                raise
            return declined(str(error))
        kernels = tuple(choice.kernel for choice in cache.choices())
        if full:
            return LayerDecision(place, native, wanted, "full", "skip= keeps it in full precision", kernels)
        return LayerDecision(place, native, wanted, wanted, "", kernels)

    @property
    def compressed(self) -> List[LayerDecision]:
        return [d for d in self.decisions if d.compressed]

    def make(self, hold: bool) -> list:
        """Caches for one prompt. hold: they keep attention over stored keys possible for as long as they live."""
        siblings = Siblings()
        fresh = {}
        for place in self.replaced:
            cache = TersorKVCache(self.settings, self.order[place], place in self.skipped, siblings)
            if hold:
                cache.hold()
            fresh[place] = cache
        return put(self._native_make(), fresh)


def _why_native(entry) -> str:
    reasons = {
        "RotatingKVCache": "a sliding window's cache, whose size is bounded already",
        "ArraysCache": "the state of a recurrent layer, not keys and values",
        "ChunkedKVCache": "a chunked cache, whose size is bounded already",
        "ConcatenateKVCache": "a cache for one pass",
    }
    return reasons.get(type(entry).__name__, f"a {type(entry).__name__}, which is none of mlx_lm's plain caches")


@dataclass
class LayerBytes:
    """What one cache holds now."""

    name: str
    effective: str
    tokens: int
    nbytes: int


@dataclass
class Report:
    """What :func:`attach` did to a model. True while at least one layer is compressed; a context manager that restores the model."""

    model_name: str
    settings: str
    decisions: List[LayerDecision]
    _model: object = field(repr=False, default=None)
    _before: object = field(repr=False, default=None)
    restored: bool = False

    @property
    def replaced(self) -> List[LayerDecision]:
        return [d for d in self.decisions if d.compressed]

    @property
    def declined(self) -> List[LayerDecision]:
        return [d for d in self.decisions if not d.compressed]

    def __bool__(self) -> bool:
        return bool(self.replaced) and not self.restored

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, *_) -> None:
        self.restore()

    def restore(self) -> None:
        """Makes every attribute what it was before; a second call does nothing. Caches made meanwhile cannot be used any more."""
        with _lock:
            if self.restored:
                return
            self.restored = True
            if self._model is None:
                return
            if self._before is _ABSENT:
                del self._model.make_cache
            else:
                self._model.make_cache = self._before
            _attached.pop(id(self._model), None)
            attention.release()
            self._model = None

    @staticmethod
    def measure(prompt_cache: Sequence) -> List[LayerBytes]:
        """Tokens and bytes that every cache of a prompt holds."""
        rows = []
        for place, entry in all_places(prompt_cache):
            effective = getattr(entry, "stores", type(entry).__name__)
            rows.append(LayerBytes(name_of(place), effective, entry.size(), 0 if entry.empty() else entry.nbytes))
        return rows

    def __str__(self) -> str:
        return explain(self)


def explain(report: Report) -> str:
    """A report in words: what is compressed, by which kernels, and for every other cache why not."""
    total, done = len(report.decisions), len(report.replaced)
    lines = [f"{report.model_name}: {done} of {total} caches store {report.settings}" + (" (restored)" if report.restored else "")]
    kernels = sorted({kernel for d in report.replaced for kernel in d.kernels})
    if kernels:
        lines.append("kernels: " + ", ".join(kernels))
    by_reason: Dict[Tuple[str, str], List[str]] = {}
    for d in report.declined:
        by_reason.setdefault((d.effective, d.reason), []).append(d.name.removeprefix("layer "))
    for (effective, reason), names in by_reason.items():
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        lines.append(f"{effective} at {shown}: {reason}")
    return "\n".join(lines)


def _require_any(plan: Plan, model) -> None:
    if not plan.compressed:
        raise NothingCompressed(
            explain(Report(_model_name(model), str(plan.settings), plan.decisions)).replace("\n", "; ")
            + "; nothing would be compressed (fallback=True runs it all the same)"
        )


def _settings(kv, options) -> Settings:
    settings = Settings.make(kv, **options)
    if not settings.compresses:
        raise Error(f"{settings} keeps keys and values in full precision, which is what the model does anyway; name a codec")
    return settings


def make_cache(
    model,
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
    fallback: bool = False,
) -> list:
    """Caches of one prompt for ``mlx_lm.generate(..., prompt_cache=)``.

    The model itself stays as it is; attention over compressed caches works for as long as one of them lives. Arguments as of
    :func:`attach`.
    """
    settings = _settings(kv, _options(locals()))
    register()
    if attached(model) is not None:
        raise Error("the model is attached already, so that its own make_cache gives compressed caches; restore it first")
    plan = Plan(model, settings, _own_make_cache(model))
    if not fallback:
        _require_any(plan, model)
    return plan.make(hold=True)


def attach(
    model,
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
    fallback: bool = False,
) -> Report:
    """Gives a model of mlx_lm compressed caches: generate, stream_generate, batch_generate, the server and the chat use them unchanged.

    Args:
        model: a language model of ``mlx_lm.load``.
        kv: what keys and values are stored as, "turboquant:4" or "turboquant:6/turboquant:4"; None: the recommended setting.
            keys=, values=: one string each instead.
        window, sinks: recent and first tokens kept in full precision besides. skip: attention layers kept in full precision.
        kernels: "auto" the fastest there is, "require" refuse where there is no fast kernel, "forbid" composed MLX operations.
        precision: "int16" or "exact" (floats throughout).
        calibration: a file of ``tersor calibrate``, for codecs that need one.
        fallback: accept a model of which nothing can be compressed (the report is then false).

    Returns a :class:`Report`; its ``restore()`` undoes everything. Raises :class:`Error` for bad arguments and
    :class:`NothingCompressed` when no cache of the model can be compressed.
    """
    settings = _settings(kv, _options(locals()))
    register()
    with _lock:
        if attached(model) is not None:
            raise Error("the model is attached already; call restore() of its report first")
        plan = Plan(model, settings, _own_make_cache(model))
        if not fallback:
            _require_any(plan, model)
        if not plan.compressed:
            return Report(_model_name(model), str(settings), plan.decisions)
        before = vars(model).get("make_cache", _ABSENT)

        def make_cache():
            return plan.make(hold=False)

        report = Report(_model_name(model), str(settings), plan.decisions, model, before)
        make_cache.report = report  # lives as long as the model is attached, also where nobody keeps it
        attention.acquire()
        model.make_cache = make_cache
        _attached[id(model)] = report
        return report


def attached(model) -> Optional[Report]:
    """The report of a model that is attached now."""
    report = _attached.get(id(model))
    return report if report is not None and report._model is model else None


def _own_make_cache(model):
    """The model's own way to make one prompt's caches, also after ours has come before it."""
    own = getattr(model, "make_cache", None)
    if own is not None:
        return own
    if not hasattr(model, "layers"):
        raise Error(f"a {type(model).__name__} is no language model of mlx_lm: it has neither make_cache nor layers")
    layers = len(model.layers)
    return lambda: [mlx_cache.KVCache() for _ in range(layers)]


def _options(arguments: dict) -> dict:
    return {k: arguments[k] for k in ("keys", "values", "window", "sinks", "skip", "kernels", "precision", "calibration")}
