"""The cache of one attention layer for several sequences of different lengths.

Every sequence ("row") has a cache of its own, so that padding is never stored and rows come and go without touching the others.
"""

from __future__ import annotations

from typing import List, Optional

import mlx.core as mx

from . import attention
from ._native import Error
from .kv_cache import Siblings, TersorKVCache, attend_options, causal_mask
from .settings import dumps, header_of


class TersorBatchKVCache:
    """The batch counterpart of :class:`TersorKVCache`, made by its ``merge``. Implements mlx_lm's protocol for batch caches.

    Columns of masks are right-aligned: the newest token of every row is in the last one. ``offset`` is an int32 array [B] of positions.
    """

    def __init__(self, rows: List[TersorKVCache], siblings: Optional[Siblings] = None):
        if not rows:
            raise Error("a batch needs at least one sequence")
        self._rows = rows
        self._siblings = siblings
        if siblings is not None:
            siblings.add(self)
        self._skip = [0] * len(rows)  # columns of left padding that are still to come
        self._left: Optional[List[int]] = None  # tokens before right padding that are still to come
        self._spans = [(0, 0)] * len(rows)  # of the last update: its columns that were tokens, by row
        self._columns = 0  # of the last update
        self._offset = None

    # What the dispatcher and the handles ask for.

    @property
    def label(self) -> str:
        return self._rows[0].label

    @property
    def layer(self) -> int:
        return self._rows[0].layer

    @property
    def progress(self) -> tuple:
        """What is the same for all layers between two steps of the model."""
        return tuple(row.offset for row in self._rows)

    @property
    def stores(self) -> str:
        """What its rows really store, for reports."""
        return self._rows[0].stores

    @property
    def dtype(self):
        return next((row.dtype for row in self._rows if row.dtype is not None), None)

    def stored_shape(self, role: str) -> tuple:
        shape = next(row.stored_shape(role) for row in self._rows if not row.empty())
        return (len(self._rows), shape[1], self.size(), shape[3])

    def attend(self, q, v, *, scale, mask=None, sinks=None, stream=None):
        """Attention of q [B, Hq, L, Dk] row by row; what stands at padding is zero."""
        attention.require_own_values(self, v)
        outputs = []
        for i, row in enumerate(self._rows):
            begin, end = self._spans[i] if q.shape[2] == self._columns else (0, q.shape[2])
            outputs.append(self._attend_row(row, q[i : i + 1], begin, end, scale, self._row_mask(mask, i, begin, end), sinks))
        return mx.concatenate(outputs, axis=0)

    def _attend_row(self, row, q, begin, end, scale, mask, sinks):
        length = q.shape[2]
        if begin == end:
            return mx.zeros((1, q.shape[1], length, self.stored_shape("values")[3]), q.dtype)
        whole = begin == 0 and end == length
        out = row._cache.attend(q if whole else q[:, :, begin:end], scale=scale, **attend_options(mask, sinks))
        return out if whole else mx.pad(out, [(0, 0), (0, 0), (begin, length - end), (0, 0)])

    def _row_mask(self, mask, i, begin, end):
        """The rows and columns of an array mask that belong to a sequence's tokens."""
        if mask is None or isinstance(mask, str):
            return mask
        while mask.ndim < 4:
            mask = mask[None]
        if mask.shape[0] > 1:
            mask = mask[i : i + 1]
        if mask.shape[2] > 1:
            mask = mask[:, :, begin:end]
        if mask.shape[3] > 1:
            last = mask.shape[3] - (self._columns - end)
            mask = mask[..., last - self._rows[i].offset : last]
        return mask

    # mlx_lm's protocol.

    def update_and_fetch(self, keys, values):
        attention.require_installed(self)
        batch, length = keys.shape[0], keys.shape[2]
        if batch != len(self._rows):
            raise Error(f"{self.label}: the batch has {len(self._rows)} sequences, the model brings keys of {batch}")
        if self._siblings is not None:
            self._siblings.check(self)
        for i, row in enumerate(self._rows):
            begin, end = self._span(i, length)
            self._spans[i] = (begin, end)
            if row._cache is None:
                row._start(keys[i : i + 1], values[i : i + 1])
            if begin < end:
                row.update_and_fetch(keys[i : i + 1, :, begin:end], values[i : i + 1, :, begin:end])
        self._columns = length
        self._offset = None
        return self.keys_and_values()

    def _span(self, i: int, length: int) -> tuple:
        """The columns of the next `length` that are tokens of row i."""
        begin = min(self._skip[i], length)
        self._skip[i] -= begin
        end = length
        if self._left is not None:
            end = min(length, begin + self._left[i])
            self._left[i] -= end - begin
        return begin, end

    def keys_and_values(self):
        return attention.stored(self)

    @property
    def offset(self):
        if self._offset is None:
            self._offset = mx.array([row.offset - skip for row, skip in zip(self._rows, self._skip)], dtype=mx.int32)
        return self._offset

    @property
    def left_padding(self):
        """Columns before each row's first token, as masks count them."""
        longest = self.size()
        return mx.array([longest - row.offset for row in self._rows], dtype=mx.int32)

    def size(self) -> int:
        return max((row.offset for row in self._rows), default=0)

    def empty(self) -> bool:
        return all(row.empty() for row in self._rows)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self._rows)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        n = max(0, min(n, self.size()))
        for row in self._rows:
            row.trim(n)
        self._offset = None
        return n

    def make_mask(self, N: int, return_array: bool = False, window_size: Optional[int] = None, **_):
        if window_size is None and not return_array:
            return None if N == 1 else "causal"
        longest = self.size()
        mask = causal_mask(N, longest, True, window_size)
        if mask is None:  # one row that sees everything
            mask = mx.ones((1, longest + N), mx.bool_)
        first = mx.array([longest - row.offset + skip for row, skip in zip(self._rows, self._skip)], dtype=mx.int32)
        return mask & (mx.arange(longest + N) >= first[:, None, None, None])

    def prepare(self, *, left_padding=None, lengths=None, right_padding=None):
        if left_padding is not None and max(left_padding) > 0:
            if not self.empty():
                raise Error(f"{self.label}: left padding can only be added to an empty batch")
            self._skip = [skip + int(n) for skip, n in zip(self._skip, left_padding)]
        if right_padding is not None and max(right_padding) > 0:
            if lengths is None:
                raise Error(f"{self.label}: right padding needs lengths=, the tokens of every row without it")
            self._left = [int(n) for n in lengths]
        self._offset = None

    def finalize(self):
        self._left = None

    def filter(self, batch_indices):
        """Keeps the given rows, in that order."""
        keep = batch_indices.tolist() if isinstance(batch_indices, mx.array) else list(batch_indices)
        self._take(
            [self._rows[i] for i in keep], [self._skip[i] for i in keep], None if self._left is None else [self._left[i] for i in keep]
        )

    def extend(self, other: "TersorBatchKVCache"):
        """Takes over the rows of another batch of the same layer."""
        self._take(self._rows + other._rows, self._skip + other._skip, None)

    def _take(self, rows, skip, left):
        self._rows, self._skip, self._left = rows, skip, left
        self._spans, self._columns, self._offset = [(0, 0)] * len(rows), 0, None

    def extract(self, idx: int) -> TersorKVCache:
        """A row as a cache of its own, with memory of its own."""
        return self._rows[idx].copy()

    @classmethod
    def merge(cls, caches) -> "TersorBatchKVCache":
        """A batch of copies of single caches."""
        siblings = next((cache.siblings for cache in caches if cache.siblings is not None), None)
        batch = None if siblings is None else siblings.of_batch(caches[0].layer)
        return cls([cache.copy() for cache in caches], batch)

    def __deepcopy__(self, memo):
        siblings = None if self._siblings is None else self._siblings.copied(memo)
        other = TersorBatchKVCache([row.copy() for row in self._rows], siblings)
        other._skip = list(self._skip)
        other._left = None if self._left is None else list(self._left)
        return other

    @property
    def state(self) -> list:
        rows = [row.state for row in self._rows]
        header = {"format": "tersor-batch-kv-cache", "rows": [row[0] for row in rows], "arrays": [len(row) - 1 for row in rows]}
        return [dumps(header), *(array for row in rows for array in row[1:])]

    @state.setter
    def state(self, state) -> None:
        header = header_of(state)
        if header.get("format") != "tersor-batch-kv-cache" or sum(header.get("arrays", [])) != len(state) - 1:
            raise Error("the saved batch is not one of this version of Tersor's; make it again from its tokens")
        rows, at = [], 1
        for text, count in zip(header["rows"], header["arrays"]):
            rows.append(TersorKVCache.from_state([text, *state[at : at + count]]))
            at += count
        TersorBatchKVCache.__init__(self, rows)

    @classmethod
    def from_state(cls, state) -> "TersorBatchKVCache":
        batch = cls.__new__(cls)
        batch.state = state
        return batch


TersorKVCache.batch_class = TersorBatchKVCache
