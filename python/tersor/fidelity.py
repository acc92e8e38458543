"""How far a model's logits move when its caches are compressed, measured as `tersor eval` does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import List, Optional, Sequence, Union

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from ._native import Error, core
from .attachment import Report, make_cache
from .places import all_places


@dataclass(frozen=True)
class Evaluation:
    """One setting against full-precision caches over the same tokens. KL in natural logarithms; errors of logits."""

    kv: str
    positions: int
    perplexity: float
    perplexity_full: float
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    logit_error_mean: float
    logit_error_max: float
    strict_failed: tuple  # bounds of the strict policy that it breaks, by name
    kv_bytes: int  # held by the compressed run's caches
    kv_bytes_full: int  # what the same tokens take in 16 bits

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.kv}: top-1 {self.top1_agreement:.4f}, KL mean {self.kl_mean:.3g} max {self.kl_max:.3g}, "
            f"perplexity {self.perplexity:.4f} (full {self.perplexity_full:.4f}), cache {self.kv_bytes / self.kv_bytes_full:.3f} of "
            f"16 bits over {self.positions} positions"
        )


def _rows(model, tokens, cache):
    logits = model(mx.array(tokens)[None], cache=cache)[0].astype(mx.float32)
    return np.ascontiguousarray(np.array(logits))


def evaluate(
    model,
    tokenizer,
    text: Union[str, Sequence[int]],
    kv: Union[str, Sequence[str], None] = None,
    *,
    chunk: int = 256,
    limit: Optional[int] = None,
    **options,
) -> List[Evaluation]:
    """Runs a text through the model with its own caches and with compressed ones, chunk by chunk, and compares all logits.

    text: a string, or token ids (tokenizer may then be None); kv: one setting or several; limit: at most so many tokens; options: as of
    :func:`tersor.attach`. Returns one :class:`Evaluation` a setting.
    """
    from mlx_lm.models.cache import make_prompt_cache

    tokens = list(tokenizer.encode(text)) if isinstance(text, str) else [int(i) for i in text]
    tokens = tokens[:limit]
    if len(tokens) < 2:
        raise Error(f"the text has {len(tokens)} tokens; give at least 2")
    if chunk < 1:
        raise Error(f"chunk is {chunk}; give 1 or more")
    settings = [kv] if kv is None or isinstance(kv, str) else list(kv)
    if not settings:
        raise Error("kv= names no setting; give one or several")
    arms = [make_cache(model, setting, **options) for setting in settings]
    meters = [core.FidelityMeter() for _ in arms]
    full = make_prompt_cache(model)
    for begin in range(0, len(tokens), chunk):
        part = tokens[begin : begin + chunk]
        targets = np.array((tokens[begin + 1 : begin + 1 + len(part)] + [-1])[: len(part)], dtype=np.int32)
        reference = _rows(model, part, full)
        for cache, meter in zip(arms, meters):
            meter.add(reference, _rows(model, part, cache), targets)
        mx.clear_cache()
    return [_evaluation(setting, meter, cache, full) for setting, meter, cache in zip(settings, meters, arms)]


def _in_16_bits(entry) -> int:
    """Bytes of a native cache's tokens as 16-bit numbers, without its spare room; of other caches what they hold."""
    if type(entry) is not KVCache or entry.empty():
        return 0 if entry.empty() else entry.nbytes
    keys, values = entry.keys, entry.values
    return 2 * entry.offset * keys.shape[0] * keys.shape[1] * (keys.shape[3] + values.shape[3])


def _evaluation(setting, meter, cache, full) -> Evaluation:
    result = meter.result()

    def held(caches):
        return sum(row.nbytes for row in Report.measure(caches))

    return Evaluation(
        setting or str(core.KvSpec.recommended()),
        result.positions,
        result.perplexity,
        result.perplexity_full,
        result.kl_mean,
        result.kl_p99,
        result.kl_max,
        result.top1_agreement,
        result.logit_error_mean,
        result.logit_error_max,
        tuple(result.strict_failed),
        held(cache),
        sum(_in_16_bits(entry) for _, entry in all_places(full)),
    )
