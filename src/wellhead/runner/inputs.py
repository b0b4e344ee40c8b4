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


def slots_of(row: Run, positions: NDArray[np.int64], page_size: int) -> NDArray[np.int64]:
    """Where positions of a sequence lie: page * page_size + offset."""
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

    positions = [np.arange(row.start, row.end, dtype=np.int64) for row in active]
    packing = Packing(
        positions=put(concat(positions)),
        starts=put(starts),
        kv_lens=put(np.array([row.end for row in active], np.int32)),
        page_table=put(table),
        slots=put(concat([slots_of(row, at, page_size) for row, at in zip(active, positions, strict=True)])),
        decode=bool((counts == 1).all()),
    )
    return Inputs(put(concat([row.tokens.astype(np.int64) for row in active])), packing, first, int(starts[-1]))


NOTHING = np.empty(0, np.int64)


def concat(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """One array of them all, int64, also of none."""
    return np.concatenate(parts) if parts else NOTHING


@dataclass(frozen=True, slots=True)
class Gathering:
    """The rows of a layer that a step hands over, all sequences after one another.

    ``now``: packed indices of those that are computed in it; ``slots`` of those that were computed earlier; ``counts``: how
    many of these (first) and of those each plan row has.
    """

    now: NDArray[np.int64]
    slots: NDArray[np.int64]
    counts: tuple[tuple[int, int], ...]


def gather(rows: Sequence[PlanRow], first: NDArray[np.int64], page_size: int) -> dict[int, Gathering]:
    """By layer; layers that want the same rows share one."""
    found: dict[int, Gathering] = {}
    known: dict[tuple[int, ...], Gathering] = {}
    for layer in sorted({layer for row in rows for layer in row.keep}):
        key = tuple(id(row.keep.get(layer)) for row in rows)
        if key not in known:
            known[key] = _gathering(rows, layer, first, page_size)
        found[layer] = known[key]
    return found


def _gathering(rows: Sequence[PlanRow], layer: int, first: NDArray[np.int64], page_size: int) -> Gathering:
    now, slots, counts = [], [], []
    for row, at in zip(rows, first.tolist(), strict=True):
        wanted = row.keep.get(layer, NOTHING)
        cut = int(np.searchsorted(wanted, row.start)) if len(wanted) and wanted[0] < row.start else 0
        if cut:
            slots.append(slots_of(row, wanted[:cut], page_size))
        if cut < len(wanted):
            now.append(wanted[cut:] + (at - row.start))
        counts.append((cut, len(wanted) - cut))
    return Gathering(concat(now), concat(slots), tuple(counts))


def head_rows(row: PlanRow, first: int) -> NDArray[np.int64]:
    """Packed indices of the rows that pass the LM head: those that predict prompt targets, then those that are drawn from."""
    parts = []
    if row.targets is not None:
        parts.append(np.arange(len(row.targets), dtype=np.int64) + (first + row.targets_from - row.start))
    if row.samples:
        last = first + len(row.tokens)
        parts.append(np.arange(last - len(row.samples), last, dtype=np.int64))
    return concat(parts)
