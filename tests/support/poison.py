"""NaN wherever nothing valid may lie: fresh and freed pages before each step, and a step's rows after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.core.engine import Core
from wellhead.runner.eager import EagerRunner
from wellhead.runner.speculative import SpeculativeRunner
from wellhead.step import Plan, StepResult


def note_freed(core: Core) -> set[int]:
    """A set that fills with the pages that become free; all of them to begin with. Its owner empties it.

    Spoil them only after a step's copies: a page may be evicted and be the source of a copy in the same plan.
    """
    freed = set(range(core.config.pages))
    give = core.space.pool.give

    def give_and_note(page: int) -> None:
        give(page)
        freed.add(page)

    core.space.pool.give = give_and_note  # type: ignore[method-assign]
    return freed


class PoisonedRunner:
    """A runner around the real one. What it hands out is spoilt when the next step begins, so a kept view shows.

    Where steps overlap, a step is judged while the next one runs: then it is spoilt one step later, and pages are poisoned
    that were free when their step started, not those freed since, which it may still read.
    """

    def __init__(self, core: Core) -> None:
        whole = core.runner
        inner = whole.target if isinstance(whole, SpeculativeRunner) else whole
        assert isinstance(inner, EagerRunner)
        self.inner = inner
        self.whole = whole
        self.plans: list[Plan] = []
        self._freed = note_freed(core)
        self._due: set[int] = set()
        self._handed_out: list[NDArray[Any]] = []
        self._older: list[NDArray[Any]] = []
        self._overlap = core.config.overlap
        core.wrap(lambda _: self, self._begins)

    def _stores(self) -> list[Any]:
        draft = [self.whole.kv.data] if isinstance(self.whole, SpeculativeRunner) else []
        return [self.inner.kv.data, *draft] + ([self.inner.rows.data] if self.inner.rows is not None else [])

    def run(self, plan: Plan) -> StepResult:
        """Poison what was freed, but for the sources of this plan's copies: they may just have been evicted."""
        self.plans.append(plan)
        if self._overlap:
            _spoil(self._older)
            self._older = self._handed_out
        else:
            self.spoil()
            self._take_freed()
        sources = {source for source, _ in plan.copies}
        for store in self._stores():
            for page in self._due - sources:
                store[page] = float("nan")
        self._due.clear()
        result = self.whole.run(plan)
        self._handed_out = [rows for row in result.rows for rows in (row.hidden or {}).values()]
        return result

    def _begins(self, plan: Plan) -> None:
        """On the engine's thread, before a step: pages freed later may still be read by it."""
        del plan
        if self._overlap:
            self._take_freed()

    def _take_freed(self) -> None:
        self._due |= self._freed
        self._freed.clear()

    def spoil(self) -> None:
        """Spoil the rows of all steps so far."""
        _spoil(self._handed_out + self._older)
        self._handed_out, self._older = [], []

    @property
    def computed(self) -> int:
        """Tokens that were computed so far."""
        return sum(plan.tokens for plan in self.plans)


def _spoil(arrays: list[NDArray[Any]]) -> None:
    for rows in arrays:
        rows.fill(0x7FC0 if rows.dtype == np.uint16 else np.nan)
