"""The seam between planning, running and judging one step: frozen data, numpy only.

A step computes some tokens of some sequences. ``Plan`` says which, ``StepResult`` what came of it. Rows are matched to
sequences by explicit absolute positions; no side infers a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.types import CaptureMode, Logprobs, LogprobSpec, SamplingParams


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One token to be drawn from the last row of a plan row.

    ``position``: of the token to be drawn; with ``seed`` it fixes the draw, whatever step it falls in. ``banned``:
    ids that may not be drawn yet (``min_new_tokens``). ``prompt`` and ``output`` (int32) are given when penalties ask
    for them, empty otherwise.
    """

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    logprobs: LogprobSpec | None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one sequence does in this step.

    ``tokens`` (int32 ``[q]``, q may be 0) stand at positions ``start .. start + q - 1``; ``pages`` hold the keys of
    positions ``0 .. start + q - 1``. Rows ``keep[0] .. keep[1] - 1`` are to be handed over: those below ``start`` were
    computed earlier and lie in the pages, the others are computed now. ``targets`` (int32 ``[t]``): the prompt tokens
    whose logprob is wanted now, predicted by the rows from position ``targets_from`` on.
    """

    key: str
    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    mode: CaptureMode
    keep: tuple[int, int]
    layers: tuple[int, ...]
    sample: SampleSpec | None = None
    targets: NDArray[np.int32] | None = None
    targets_from: int = 0
    target_spec: LogprobSpec | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def kept(self) -> int:
        return self.keep[1] - self.keep[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. ``copies``: pages (source, target) to be copied first, in this order. ``mode``: max over the rows."""

    number: int
    rows: tuple[PlanRow, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def mode(self) -> CaptureMode:
        return max((row.mode for row in self.rows), default=CaptureMode.NULL)

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class RowResult:
    """What came of one plan row.

    ``token``: the drawn id, or -1 if none was asked for. ``finite``: False if this row's logits had a NaN or infinity.
    ``hidden``: layer -> rows ``[kept, H]`` in storage dtype; each array owns its memory, or a share of this step's copy
    that nobody writes again.
    """

    token: int = -1
    finite: bool = True
    hidden: dict[int, NDArray[Any]] | None = None
    logprobs: Logprobs | None = None
    target_logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One entry per plan row, in the same order. ``produced``: rows that left the model in this step, all sequences."""

    rows: tuple[RowResult, ...]
    produced: int


class Runner(Protocol):
    """Whatever can carry out a plan."""

    def run(self, plan: Plan) -> StepResult:
        """Carry out one step. An exception means that nothing of this step may be used."""
        ...


class Tap(Protocol):
    """Where a forward pass leaves the rows that its step must keep; the models know nothing else of capture."""

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose rows are wanted, 0 .. N - 1; the final layer's are written by the runner after its norm."""
        ...

    def take(self, layer: int, rows: Any) -> None:
        """Keep what is wanted of float32 ``rows [T, H]``; they may change after the call."""
        ...
