"""A sequence and the tokens that it computes in a step -> a ``PlanRow``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellhead.scheduler.sequence import Sequence
from wellhead.step import UNKNOWN, PlanRow, SampleSpec
from wellhead.types import Positions

NO_TOKENS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a sequence stands when the steps planned so far have run: tokens computed, and tokens there are.

    ``told``: rows below this position are handed over by a step that still runs.
    """

    computed: int
    length: int
    told: int = 0

    @property
    def remaining(self) -> int:
        """Tokens still to compute before the next draw."""
        return self.length - self.computed

    @classmethod
    def of(cls, seq: Sequence, row: PlanRow | None = None) -> Standing:
        """``row``: what a step that runs now does of it."""
        if row is None:
            return cls(seq.computed, seq.length)
        return cls(row.end, seq.length + len(row.samples), row.end)

    def left(self, seq: Sequence) -> int:
        """Tokens that may still be generated."""
        return seq.left - (self.length - seq.length)

    def newest(self, seq: Sequence) -> bool:
        """Is only the newest token of the output to be computed?"""
        return self.remaining == 1 and self.length > seq.prompt_length

    def decodes(self, seq: Sequence) -> bool:
        """The same, and there is something to draw after it."""
        return self.newest(seq) and self.left(seq) > 0

    def has_more(self, seq: Sequence) -> bool:
        """Is there more of the prompt, or of what was computed before a preemption, to compute?"""
        return self.remaining > 0 and not self.newest(seq)


def plan_row(seq: Sequence, at: Standing, count: int, eos_ids: tuple[int, ...], drafts: NDArray[np.int32] = NO_TOKENS) -> PlanRow:
    """The next ``count`` tokens of a sequence, and drafts behind them. A token that a step still has to draw is UNKNOWN."""
    request, start, end = seq.request, at.computed, at.computed + count
    assert seq.lease is not None
    draws = end == at.length and seq.generates
    targets, first = NO_TOKENS, 0
    if seq.targets_done < seq.prompt_length and end > start:
        first = max(seq.targets_done, start + 1)
        targets = seq.tokens[first : min(end, seq.prompt_length - 1) + 1].copy()
    known = seq.tokens[start:end]
    unknown = np.full(count - len(known), UNKNOWN, np.int32)
    return PlanRow(
        key=seq.key,
        tokens=np.concatenate([known, unknown, drafts]),
        start=start,
        pages=seq.lease.table(),
        mode=seq.mode,
        keep=_keep(seq, at.told, end, drafts) if seq.takers else {},
        samples=tuple(_sample(seq, at, drafts[:i], eos_ids) for i in range(len(drafts) + 1)) if draws else (),
        targets=targets if len(targets) else None,
        targets_from=first - 1,
        target_spec=request.logprobs,
        following=int(seq.tokens[end]) if end < seq.length else -1,
        left=at.left(seq) if draws else 0,
    )


def _keep(seq: Sequence, told: int, end: int, drafts: NDArray[np.int32]) -> dict[int, Positions]:
    """The rows below ``end``, and those of drafts behind it, that any reader wants, layer by layer."""
    tokens = np.concatenate([seq.tokens[:end], drafts]) if len(drafts) else seq.tokens
    wanted = [reader.wanted(told, end + len(drafts), tokens) for reader in seq.takers]
    asking: dict[int, tuple[int, ...]] = {}
    for i, reader in enumerate(seq.takers):
        for layer in reader.read.layers if len(wanted[i]) else ():
            asking[layer] = (*asking.get(layer, ()), i)
    united = {group: _union([wanted[i] for i in group]) for group in set(asking.values())}
    return {layer: united[group] for layer, group in asking.items()}


def _union(parts: list[Positions]) -> Positions:
    return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))


def _sample(seq: Sequence, at: Standing, drafts: NDArray[np.int32], eos_ids: tuple[int, ...]) -> SampleSpec:
    """The draw that follows ``drafts``, if they stand."""
    request, params = seq.request, seq.request.sampling
    position = at.length + len(drafts)
    banned: tuple[int, ...] = ()
    if position - seq.prompt_length < params.min_new_tokens:
        banned = (*eos_ids, *params.stop_token_ids)
    return SampleSpec(
        params=params,
        seed=request.seed,
        position=position,
        banned=banned,
        prompt=request.input_ids if params.repetition_penalty != 1.0 else NO_TOKENS,
        output=np.concatenate([seq.output, drafts]) if params.penalised else NO_TOKENS,
        logprobs=request.logprobs,
    )


def foreseeable(seq: Sequence, row: PlanRow) -> bool:
    """Can the next row be planned while this one runs: does it hang on nothing that comes back but the token itself?"""
    if row.samples and (seq.request.sampling.penalised or seq.speculation is not None):
        return False
    if any(reader.selection.by_answer for reader in seq.takers):
        return False
    return seq.targets_done >= seq.prompt_length
