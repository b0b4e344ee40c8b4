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
    """A runner around the real one. What it hands out is spoilt when the next step begins, so a kept view shows."""

    def __init__(self, core: Core) -> None:
        whole = core.runner
        inner = whole.target if isinstance(whole, SpeculativeRunner) else whole
        assert isinstance(inner, EagerRunner)
        self.inner = inner
        self.whole = whole
        self.plans: list[Plan] = []
        self._freed = note_freed(core)
        self._handed_out: list[NDArray[Any]] = []
        core.runner = self

    def _stores(self) -> list[Any]:
        draft = [self.whole.kv.data] if isinstance(self.whole, SpeculativeRunner) else []
        return [self.inner.kv.data, *draft] + ([self.inner.rows.data] if self.inner.rows is not None else [])

    def run(self, plan: Plan) -> StepResult:
        """Poison what was freed, but for the sources of this plan's copies: they may just have been evicted."""
        self.plans.append(plan)
        self.spoil()
        sources = {source for source, _ in plan.copies}
        for store in self._stores():
            for page in self._freed - sources:
                store[page] = float("nan")
        self._freed.clear()
        result = self.whole.run(plan)
        self._handed_out = [rows for row in result.rows for rows in (row.hidden or {}).values()]
        return result

    def spoil(self) -> None:
        """Spoil the rows of the last step."""
        for rows in self._handed_out:
            rows.fill(0x7FC0 if rows.dtype == np.uint16 else np.nan)
        self._handed_out = []

    @property
    def computed(self) -> int:
        """Tokens that were computed so far."""
        return sum(plan.tokens for plan in self.plans)
