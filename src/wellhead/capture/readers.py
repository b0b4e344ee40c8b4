"""A request's own store of rows, one for each of its reads. Rows go in by position; the reply's ``HiddenStates`` come out.

One rule covers chunks, recomputation after preemption and speculative overshoot: a reader takes the next rows that it
expects, ignores those that it has, and refuses a gap. Rows are held in the model's own dtype (bfloat16 as its 16 bits).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InternalError
from wellhead.reads import Positions, Read, Selection
from wellhead.reductions import FIRST, REDUCTIONS, Reduction
from wellhead.types import STORAGE, DType, HiddenStates, Request, widen

Kept = Mapping[int, NDArray[Any]]
"""Layer -> rows ``[k, W]``."""


class Store(Protocol):
    """Where the rows of one read end up, layer by layer."""

    def add(self, at: Positions, rows: Kept) -> None:
        """Take the next rows, in ascending order of position; they are copied."""
        ...

    def settle(self, at: Positions) -> None:
        """Of the rows that were added, keep those at these positions (ascending)."""
        ...

    @property
    def nbytes(self) -> int:
        """What it holds."""
        ...

    def arrays(self, layers: Sequence[int]) -> list[NDArray[Any]]:
        """What came of it. The store is not used afterwards."""
        ...


class AllRows:
    """Rows one after another, in one array per layer that is sized up front and cut at the end."""

    def __init__(self, layers: Sequence[int], widths: Mapping[int, int], dtype: DType, most: int) -> None:
        self._rows = {layer: np.empty((most, widths[layer]), STORAGE[dtype]) for layer in layers}
        self._count = 0

    def add(self, at: Positions, rows: Kept) -> None:
        end = self._count + len(at)
        for layer, kept in self._rows.items():
            kept[self._count : end] = rows[layer]
        self._count = end

    def settle(self, at: Positions) -> None:
        self._count = len(at)

    def since(self, first: int, layers: Sequence[int]) -> list[NDArray[Any]]:
        """Copies of the rows from number ``first`` on."""
        return [self._rows[layer][first : self._count].copy() for layer in layers]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows.values())

    def arrays(self, layers: Sequence[int]) -> list[NDArray[Any]]:
        """Views where they are nearly all of their storage, else copies: a short reply must not keep a long buffer alive."""
        whole = self._count
        parts = ((rows, rows[:whole]) for rows in (self._rows[layer] for layer in layers))
        return [part if len(part) == len(rows) else part.copy() for rows, part in parts]


class Latest:
    """The rows that may still count where only the end decides: a few, with their positions."""

    def __init__(self, layers: Sequence[int], widths: Mapping[int, int], dtype: DType) -> None:
        self._at: list[Positions] = []
        self._rows: dict[int, list[NDArray[Any]]] = {layer: [np.empty((0, widths[layer]), STORAGE[dtype])] for layer in layers}

    def add(self, at: Positions, rows: Kept) -> None:
        # Joined only when some are let go, or at the end: where all but the last rows are wanted, none ever is.
        self._at.append(at)
        for layer, parts in self._rows.items():
            parts.append(rows[layer].copy())

    def replace(self, at: Positions, rows: Kept) -> None:
        """Hold these rows and no others."""
        self._at = [at]
        self._rows = {layer: [rows[layer].copy()] for layer in self._rows}

    def settle(self, at: Positions) -> None:
        known = np.concatenate(self._at)
        if len(at) < len(known):
            index = np.searchsorted(known, at)
            self._rows = {layer: [np.concatenate(parts)[index]] for layer, parts in self._rows.items()}
        self._at = [at]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for parts in self._rows.values() for rows in parts)

    def arrays(self, layers: Sequence[int]) -> list[NDArray[Any]]:
        return [np.concatenate(self._rows[layer]) for layer in layers]


class Reduced:
    """A reduction of each layer; memory does not grow with the rows."""

    def __init__(self, layers: Sequence[int], widths: Mapping[int, int], dtype: DType, reduce: str) -> None:
        self._dtype = dtype
        made = REDUCTIONS[reduce]
        if made is None:
            raise InternalError(f"{reduce} is no reduction that adds up")
        self._states: dict[int, Reduction] = {layer: made(widths[layer]) for layer in layers}
        self._count = 0

    def add(self, at: Positions, rows: Kept) -> None:
        self._count += len(at)
        for layer, state in self._states.items():
            state.add(widen(rows[layer], self._dtype))

    def settle(self, at: Positions) -> None:
        if len(at) < self._count:
            raise InternalError(f"{self._count} rows were reduced, but only {len(at)} are valid: they were taken too early")

    @property
    def nbytes(self) -> int:
        return 0

    def arrays(self, layers: Sequence[int]) -> list[NDArray[Any]]:
        return [self._states[layer].result() for layer in layers]


class Reader:
    """Takes the rows of one ``Read`` as they are computed. ``widths``: of each layer's rows."""

    def __init__(self, read: Read, selection: Selection, dtype: DType, widths: Mapping[int, int], prompt_rows: int) -> None:
        self.read, self.selection = read, selection
        self._dtype, self._widths, self._prompt_rows = dtype, widths, prompt_rows
        self.next = 0  # rows below it were taken, or are not wanted
        self._at: list[Positions] = []
        self._sent = 0
        self._store: Store
        if selection.trailing:
            self._store = Latest(read.layers, widths, dtype)
        elif REDUCTIONS[read.reduce] is not None:
            self._store = Reduced(read.layers, widths, dtype, read.reduce)
        else:
            self._store = AllRows(
                read.layers, widths, dtype, min(1, selection.bound) if read.reduce == FIRST else selection.bound
            )

    @property
    def first_needed(self) -> int:
        """The first position whose row may still be wanted: where no rows are kept, all from it on must be computed."""
        if self._has_first:
            return sys.maxsize
        return self.selection.next_needed(self.next)

    @property
    def _has_first(self) -> bool:
        return self.read.reduce == FIRST and bool(self._at) and not self.selection.trailing

    @property
    def nbytes(self) -> int:
        """Bytes of rows that it holds."""
        return self._store.nbytes

    def wanted(self, start: int, end: int, tokens: NDArray[np.int32]) -> Positions:
        """Positions of the rows to bring, of those from ``start`` on and below ``end``; ``tokens``: of all below ``end``."""
        start = max(start, self.next)
        if start >= end or self._has_first:
            return _NONE
        found = self.selection.candidates(start, end, tokens)
        return found[:1] if self.read.reduce == FIRST and not self.selection.trailing else found

    def take(self, at: Mapping[int, Positions], rows: Kept, end: int, tokens: NDArray[np.int32]) -> None:
        """Rows at the positions ``at`` of each layer (ascending); all rows below ``end`` are certain now."""
        if end <= self.next:
            return
        due = self.wanted(self.next, end, tokens)
        if len(due):
            picked = {}
            for layer in self.read.layers:
                picked[layer] = pick(at[layer], rows[layer], due)
            newest = self.selection.newest
            if newest is not None and len(due) >= newest and isinstance(self._store, Latest):
                due = due[-newest:]
                self._store.replace(due, {layer: part[-newest:] for layer, part in picked.items()})
                self._at = [due]
                self.next = end
                return
            self._store.add(due, picked)
            self._at.append(due)
        self.next = end
        if len(due) and self.selection.trailing:
            known = self._positions()
            kept = self.selection.possible(known, tokens, end)
            if len(kept) < len(known):
                self._store.settle(kept)
                self._at = [kept]

    def _positions(self) -> Positions:
        if len(self._at) > 1:
            self._at = [np.concatenate(self._at)]
        return self._at[0] if self._at else _NONE

    def piece(self, tokens: NDArray[np.int32]) -> HiddenStates | None:
        """What is new since the last piece, if this read wants pieces."""
        if not self.read.each or not isinstance(self._store, AllRows):
            return None
        at = self._positions()
        if self._sent == len(at):
            return None
        first, self._sent = self._sent, len(at)
        return self._states(at[first:], self._store.since(first, self.read.layers), tokens, self.next)

    def result(self, rows: int, tokens: NDArray[np.int32]) -> HiddenStates:
        """The reply, now that the sequence is over with ``rows`` rows. The reader is not used afterwards.

        Raises ``InvalidRequest`` if a row that was named does not exist, ``InternalError`` if one did not come.
        """
        if self.next < rows:
            raise InternalError(f"{rows} rows are due, {self.next} were seen")
        self.selection.check_end(rows)
        known = self._positions()
        at = self.selection.exact(known, tokens, rows) if self.selection.trailing else known[: np.searchsorted(known, rows)]
        if len(at) < len(known):
            self._store.settle(at)
        if self.selection.trailing:
            at, arrays = self._late(at)
        elif self._sent:
            assert isinstance(self._store, AllRows)
            at, arrays = at[self._sent :], self._store.since(self._sent, self.read.layers)
        else:
            arrays = self._store.arrays(self.read.layers)
        if self.read.reduce == FIRST:
            arrays = [self._first(rows_of, layer) for layer, rows_of in zip(self.read.layers, arrays, strict=True)]
        return self._states(at, arrays, tokens, rows)

    def _late(self, at: Positions) -> tuple[Positions, list[NDArray[Any]]]:
        """Reduce what was held back until the end."""
        layers = self.read.layers
        arrays = self._store.arrays(layers)
        if REDUCTIONS[self.read.reduce] is None:
            return (at[:1] if self.read.reduce == FIRST else at), arrays
        reduced = Reduced(layers, self._widths, self._dtype, self.read.reduce)
        reduced.add(at, dict(zip(layers, arrays, strict=True)))
        return at, reduced.arrays(layers)

    def _first(self, rows: NDArray[Any], layer: int) -> NDArray[Any]:
        if len(rows):
            return rows[0].copy() if rows.base is not None or len(rows) > 1 else rows.reshape(-1)
        width = self._widths[layer]
        return np.full(width, 0x7FC0, np.uint16) if self._dtype == "bfloat16" else np.full(width, np.nan, STORAGE[self._dtype])

    def _states(self, at: Positions, arrays: list[NDArray[Any]], tokens: NDArray[np.int32], total: int) -> HiddenStates:
        read = self.read
        return HiddenStates(
            dtype=self._dtype if REDUCTIONS[read.reduce] is None else "float32", layers=read.layers, arrays=tuple(arrays),
            positions=at, prompt_rows=self._prompt_rows, reduce=read.reduce, asked=read.asked, total_rows=total,
            token_ids=tokens[at] if read.token_ids else None, sglang=read.sglang,
        )  # fmt: skip


_NONE: Positions = np.empty(0, np.int64)


def pick(at: Positions, rows: NDArray[Any], due: Positions) -> NDArray[Any]:
    """Of rows at the positions ``at``, those at ``due`` (ascending, at least one); ``InternalError`` if any did not come."""
    if _same(at, due):
        return rows
    index = np.searchsorted(at, due)
    if len(at) < len(due) or index[-1] >= len(at) or not _same(at[index], due):
        raise InternalError(f"rows {_span(at)} came, {_span(due)} were expected")
    picked: NDArray[Any] = rows[index]
    return picked


def _same(a: Positions, b: Positions) -> bool:
    if len(a) == len(b) == 1:
        return bool(a[0] == b[0])
    return a is b or (len(a) == len(b) and bool((a == b).all()))


def _span(at: Positions) -> str:
    return f"{at[0]} to {at[-1]} ({len(at)})" if len(at) else "none"


def make_readers(request: Request, dtype: DType, width: int) -> tuple[Reader, ...]:
    """The readers that a request asks for. ``width``: of the rows of every layer."""
    made = []
    for read in request.reads:
        selection = read.rows.of(request.input_ids, request.sampling.max_new_tokens, read.field)
        made.append(Reader(read, selection, dtype, dict.fromkeys(read.layers, width), request.prompt_tokens))
    return tuple(made)
