"""Steps on a thread of their own, so that the next one can be planned and the last one judged meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from wellhead.step import UNKNOWN, Plan, PlanRow, StepResult


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that runs, or is about to. ``result`` waits for it, and raises what it raised."""

    plan: Plan
    result: Callable[[], StepResult]


class Runway:
    """Runs one step after the other. The thread starts with the first."""

    def __init__(self, run: Callable[[Plan], StepResult]) -> None:
        self._run = run
        self._pool = ThreadPoolExecutor(1, "wellhead-step")

    def start(self, plan: Plan) -> Flight:
        return Flight(plan, self._pool.submit(self._run, plan).result)

    def close(self) -> None:
        """Wait for the step that runs; none can be started afterwards."""
        self._pool.shutdown(wait=True)


def filled(plan: Plan, before: Plan, result: StepResult) -> Plan:
    """A plan that was made ahead, with the tokens that the step before it drew. Rows whose token did not come are left out."""
    drawn = {row.key: got.tokens for row, got in zip(before.rows, result.rows, strict=True)}

    def fill(row: PlanRow) -> PlanRow | None:
        if not len(row.tokens) or row.tokens[-1] != UNKNOWN:
            return row
        tokens = drawn[row.key]
        return dataclasses.replace(row, tokens=np.array(tokens, np.int32)) if tokens else None

    return dataclasses.replace(plan, rows=tuple(row for row in map(fill, plan.rows) if row is not None))
