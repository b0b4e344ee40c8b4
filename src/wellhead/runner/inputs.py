"""Plan rows -> tensors. Only sequences that compute something are packed; all indices of rows are worked out here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.kernels.ops import Packing
from wellhead.step import PlanRow


class Run(Protocol):
    """Consecutive tokens of one sequence, and its pages: a ``PlanRow``, or a ``Span``."""

    @property
    def tokens(self) -> NDArray[np.int32]: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def pages(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class Span:
    """What a draft model reads of one sequence at once: int32 ``tokens`` at positions ``start ..``."""

    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a forward pass needs. ``first``: packed index of each run's first token (runs without tokens: -1)."""

    ids: torch.Tensor
    packing: Packing
    first: NDArray[np.int64]
    tokens: int

    @property
    def decode(self) -> bool:
        """One token per sequence, all of them."""
        return self.packing.decode


def slots_of(row: Run, start: int, end: int, page_size: int) -> NDArray[np.int64]:
    """Where positions ``start .. end - 1`` of a sequence lie: page * page_size + offset."""
    positions = np.arange(start, end, dtype=np.int64)
    slots: NDArray[np.int64] = row.pages[positions // page_size].astype(np.int64) * page_size + positions % page_size
    return slots


def build(runs: Sequence[Run], page_size: int, device: torch.device) -> Inputs:
    """Pack tokens without padding."""
    active = [row for row in runs if len(row.tokens)]
    counts = np.array([len(row.tokens) for row in active], np.int32)
    first = np.full(len(runs), -1, np.int64)
    starts = np.zeros(len(active) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    at = 0
    for i, row in enumerate(runs):
        if len(row.tokens):
            first[i] = starts[at]
            at += 1
    table = np.full((len(active), max((-(-row.end // page_size) for row in active), default=0)), -1, np.int32)
    for i, row in enumerate(active):
        used = -(-row.end // page_size)
        table[i, :used] = row.pages[:used]

    def put(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    packing = Packing(
        positions=put(concat([np.arange(row.start, row.end, dtype=np.int64) for row in active])),
        starts=put(starts),
        kv_lens=put(np.array([row.end for row in active], np.int32)),
        page_table=put(table),
        slots=put(concat([slots_of(row, row.start, row.end, page_size) for row in active])),
        decode=bool((counts == 1).all()),
    )
    return Inputs(put(concat([row.tokens.astype(np.int64) for row in active])), packing, first, int(starts[-1]))


def concat(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """One array of them all, int64, also of none."""
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def kept_now(row: PlanRow, first: int) -> NDArray[np.int64]:
    """Packed indices of the rows that are handed over and computed in this step."""
    low, high = max(row.keep[0], row.start), row.keep[1]
    return np.arange(low, high, dtype=np.int64) + (first - row.start) if high > low else np.empty(0, np.int64)


def recalled(row: PlanRow, page_size: int) -> NDArray[np.int64]:
    """Slots of the rows that are handed over and were computed earlier."""
    low, high = row.keep[0], min(row.keep[1], row.start)
    return slots_of(row, low, high, page_size) if high > low else np.empty(0, np.int64)


def head_rows(row: PlanRow, first: int) -> NDArray[np.int64]:
    """Packed indices of the rows that pass the LM head: those that predict prompt targets, then those that are drawn from."""
    parts = []
    if row.targets is not None:
        parts.append(np.arange(len(row.targets), dtype=np.int64) + (first + row.targets_from - row.start))
    if row.samples:
        last = first + len(row.tokens)
        parts.append(np.arange(last - len(row.samples), last, dtype=np.int64))
    return concat(parts)
