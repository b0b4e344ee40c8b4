"""The seam between planning, running and judging one step: frozen data, numpy only.

A step computes some tokens of some sequences. ``Plan`` says which, ``StepResult`` what came of it. Rows are matched to
sequences by explicit absolute positions; no side infers a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.types import CaptureMode, Logprobs, LogprobSpec, Positions, SamplingParams

#: Stands in a plan that was made ahead for the token that the step before it still has to draw.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One token to be drawn from a row.

    ``position``: of the token to be drawn; with ``seed`` it fixes the draw, whatever step it falls in. ``banned``:
    ids that may not be drawn yet (``min_new_tokens``). ``prompt`` and ``output`` (int32) are given when penalties ask
    for them, empty otherwise; ``output`` includes the drafts before ``position``.
    """

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    logprobs: LogprobSpec | None


def count_below(at: Positions, end: int) -> int:
    """How many of these positions (ascending, at least one) lie below ``end``: mostly all, and that is seen at once."""
    return len(at) if at[-1] < end else int(np.searchsorted(at, end))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one sequence does in this step.

    ``tokens`` (int32 ``[q]``, q may be 0) stand at positions ``start .. start + q - 1``; ``pages`` hold the keys of
    positions ``0 .. start + q - 1``. ``keep``: for each layer the positions (ascending, at least one) whose rows are to be
    handed over: those below ``start`` were computed earlier and lie in the pages, the others are computed now. Layers that
    want the same rows may share one array. ``targets`` (int32 ``[t]``): the prompt tokens
    whose logprob is wanted now, predicted by the rows from position ``targets_from`` on.

    ``samples``: what is to be drawn from the last rows. One: from the last token's row. With k more, the last k tokens are
    drafts, of which nobody knows yet whether they stand: each row before a draft judges it (``speculative.accept``), and
    rows of drafts that fall are not handed over, even where ``keep`` covers them.

    For draft models: ``following`` is the token after the last one, or -1 if that is to be drawn or there is none;
    ``left``: how many tokens may still be generated, this step's included, or 0 if none is drawn.
    """

    key: str
    tokens: NDArray[np.int32]
    start: int
    pages: NDArray[np.int32]
    mode: CaptureMode
    keep: Mapping[int, Positions] = field(default_factory=dict)
    samples: tuple[SampleSpec, ...] = ()
    targets: NDArray[np.int32] | None = None
    targets_from: int = 0
    target_spec: LogprobSpec | None = None
    following: int = -1
    left: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def drafts(self) -> int:
        """How many of the tokens, the last ones, are drafts."""
        return max(0, len(self.samples) - 1)

    def useful_drafts(self, tokens: int) -> int:
        """How many drafts could count in the next step, if ``tokens`` were drawn in this one."""
        return max(0, self.left - tokens - 1) if tokens else 0

    def valid_end(self, tokens: int) -> int:
        """The position after the last row that counts, if ``tokens`` of the drawn ones do."""
        return self.end - self.drafts + max(0, tokens - 1)

    def kept(self, tokens: int) -> dict[int, int]:
        """How many rows of each layer are to be handed over, if ``tokens`` of the drawn ones count."""
        end = self.valid_end(tokens)
        return {layer: count_below(at, end) for layer, at in self.keep.items()}


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

    ``tokens``: the ids that were drawn, accepted drafts first; none if none was asked for. ``finite``: False if the logits
    behind the next one had a NaN or infinity. ``logprobs``: one for each of ``tokens``. ``hidden``: layer -> rows
    ``[row.kept(len(tokens))[layer], H]`` in storage dtype; each array owns its memory, or a share of this step's copy that nobody
    writes again. ``proposals`` (int32): a draft model's for the next step.
    """

    tokens: tuple[int, ...] = ()
    finite: bool = True
    hidden: dict[int, NDArray[Any]] | None = None
    logprobs: Logprobs | None = None
    target_logprobs: Logprobs | None = None
    proposals: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One entry per plan row, in the same order. ``produced``: rows that left the model in this step, all sequences and layers.
    ``draft_seconds``: what a draft model took of the step's time."""

    rows: tuple[RowResult, ...]
    produced: int
    draft_seconds: float = 0.0


class Runner(Protocol):
    """Whatever can carry out a plan."""

    def run(self, plan: Plan) -> StepResult:
        """Carry out one step. An exception means that nothing of this step may be used."""
        ...


class Tap(Protocol):
    """Where a forward pass leaves the rows that its step must keep; the models know nothing else of capture."""

    @property
    def layers(self) -> frozenset[int]:
        """Layers whose rows are wanted, as ``Read`` numbers them."""
        ...

    def take(self, layer: int, rows: Any) -> None:
        """Keep what is wanted of ``rows``, float32 or the model's dtype; they may change after the call.

        ``[T, H]``, one for each packed token; of the layers N and N + 1 (before the final norm) only those that the forward
        pass was asked for.
        """
        ...
