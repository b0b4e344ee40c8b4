"""A request's own store of rows. Rows go in by position; what comes out is the reply's ``HiddenStates``.

One rule covers chunks, recomputation after preemption and speculative overshoot: a sink takes the next expected position,
ignores earlier ones, and refuses a gap. Sinks hold the model's own dtype (bfloat16 as its 16 bits).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InternalError
from wellhead.types import STORAGE, CaptureMode, CaptureSpec, DType, HiddenStates, Pooling, widen

Rows = dict[int, NDArray[Any]]


class Sink(Protocol):
    """Takes rows by position."""

    def wants(self, end: int) -> tuple[int, int]:
        """Positions of the rows to bring, of those below ``end``."""
        ...

    def write(self, position: int, rows: Rows) -> None:
        """Take rows ``position ..`` of each layer ``[k, H]``; they are copied."""
        ...

    def cut(self, rows: int) -> None:
        """Forget rows from position ``rows`` on: tokens past a stop have none."""
        ...

    def piece(self) -> HiddenStates | None:
        """What is new since the last piece, if this request wants pieces."""
        ...

    def result(self) -> HiddenStates:
        """The reply's rows; the sink is not used afterwards."""
        ...


class LastSink:
    """One row, the latest; memory does not grow with the output."""

    def __init__(self, spec: CaptureSpec, dtype: DType, hidden_size: int, prompt_rows: int) -> None:
        self._spec, self._dtype, self._prompt_rows = spec, dtype, prompt_rows
        self._rows = {layer: np.zeros(hidden_size, STORAGE[dtype]) for layer in spec.layers}
        self._next = prompt_rows - 1

    def wants(self, end: int) -> tuple[int, int]:
        return (end - 1, end) if end > self._next else (end, end)

    def write(self, position: int, rows: Rows) -> None:
        for layer, kept in self._rows.items():
            count = len(rows[layer])
            if count and position + count > self._next:
                kept[:] = rows[layer][-1]
        count = len(next(iter(rows.values())))
        self._next = max(self._next, position + count)

    def cut(self, rows: int) -> None:
        if rows < self._next:
            raise InternalError(f"the last row is {self._next - 1}, but only {rows} rows are valid: it was written too early")

    def piece(self) -> HiddenStates | None:
        return None

    def result(self) -> HiddenStates:
        return _states(
            self._spec, self._dtype, tuple(self._rows[la] for la in self._spec.layers), self._prompt_rows, 0, self._next
        )


class FullSink:
    """All rows, in one array per layer that is sized up front and cut at the end."""

    def __init__(self, spec: CaptureSpec, dtype: DType, hidden_size: int, prompt_rows: int, most_rows: int) -> None:
        self._spec, self._dtype, self._prompt_rows = spec, dtype, prompt_rows
        self._rows = {layer: np.empty((most_rows, hidden_size), STORAGE[dtype]) for layer in spec.layers}
        self._next = 0
        self._sent = 0

    def wants(self, end: int) -> tuple[int, int]:
        return (self._next, end) if end > self._next else (end, end)

    def write(self, position: int, rows: Rows) -> None:
        if position > self._next:
            raise InternalError(f"rows come from position {position}, {self._next} was expected")
        skip = self._next - position
        for layer, kept in self._rows.items():
            fresh = rows[layer][skip:]
            kept[self._next : self._next + len(fresh)] = fresh
        count = len(next(iter(rows.values())))
        self._next = max(self._next, position + count)

    def cut(self, rows: int) -> None:
        self._next = min(self._next, rows)

    def piece(self) -> HiddenStates | None:
        if not self._spec.incremental or self._next == self._sent:
            return None
        first, self._sent = self._sent, self._next
        arrays = tuple(self._rows[la][first : self._next].copy() for la in self._spec.layers)
        return _states(self._spec, self._dtype, arrays, self._prompt_rows, first, self._next)

    def result(self) -> HiddenStates:
        first = self._sent
        arrays = tuple(_own(self._rows[la], first, self._next) for la in self._spec.layers)
        return _states(self._spec, self._dtype, arrays, self._prompt_rows, first, self._next)


class MeanSink:
    """The mean over all rows. The sum runs row by row in float64, so that it does not depend on how rows were chunked."""

    def __init__(self, spec: CaptureSpec, dtype: DType, hidden_size: int, prompt_rows: int) -> None:
        self._spec, self._dtype, self._prompt_rows = spec, dtype, prompt_rows
        self._sums = {layer: np.zeros(hidden_size, np.float64) for layer in spec.layers}
        self._next = 0

    def wants(self, end: int) -> tuple[int, int]:
        return (self._next, end) if end > self._next else (end, end)

    def write(self, position: int, rows: Rows) -> None:
        if position > self._next:
            raise InternalError(f"rows come from position {position}, {self._next} was expected")
        skip = self._next - position
        for layer, total in self._sums.items():
            for row in widen(rows[layer][skip:], self._dtype):
                total += row
        count = len(next(iter(rows.values())))
        self._next = max(self._next, position + count)

    def cut(self, rows: int) -> None:
        if rows < self._next:
            raise InternalError(
                f"{self._next} rows were summed, but only {rows} are valid: rows must be cut before they are written"
            )

    def piece(self) -> HiddenStates | None:
        return None

    def result(self) -> HiddenStates:
        means = (self._sums[la] / max(1, self._next) for la in self._spec.layers)
        arrays = tuple(m.astype(np.float32) for m in means)
        return _states(self._spec, "float32", arrays, self._prompt_rows, 0, self._next)


def _own(rows: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """A view if it is nearly all of its storage, else a copy: a short reply must not keep a long buffer alive."""
    part = rows[first:last]
    return part if len(part) == len(rows) else part.copy()


def _states(
    spec: CaptureSpec, dtype: DType, arrays: tuple[NDArray[Any], ...], prompt_rows: int, first: int, total: int
) -> HiddenStates:
    return HiddenStates(
        mode=spec.mode, pooling=spec.pooling, dtype=dtype, layers=spec.layers, arrays=arrays,
        prompt_rows=prompt_rows, asked=spec.asked, first_row=first, total_rows=total,
    )  # fmt: skip


def make_sink(spec: CaptureSpec, dtype: DType, hidden_size: int, prompt_tokens: int, max_new_tokens: int) -> Sink | None:
    """The sink that a request's capture asks for; None if it asks for nothing."""
    if spec.effective is CaptureMode.NULL:
        return None
    if spec.pooling is Pooling.MEAN:
        return MeanSink(spec, dtype, hidden_size, prompt_tokens)
    if spec.mode is CaptureMode.LAST:
        return LastSink(spec, dtype, hidden_size, prompt_tokens)
    return FullSink(spec, dtype, hidden_size, prompt_tokens, prompt_tokens + max(0, max_new_tokens - 1))
