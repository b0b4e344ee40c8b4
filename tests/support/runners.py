"""Runners around an engine's own, for tests that need a slow, a broken or a dictated one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wellhead.core.engine import Core
from wellhead.frontends.engine import Engine
from wellhead.step import Plan, Runner, StepResult

Run = Callable[[Runner, Plan], StepResult]


class Around:
    """A runner whose steps are what ``run`` makes of them, given the real one."""

    def __init__(self, inner: Runner, run: Run) -> None:
        self.inner = inner
        self._run = run

    def run(self, plan: Plan) -> StepResult:
        return self._run(self.inner, plan)


def put_around(engine: Engine, run: Run) -> Callable[[], Any]:
    """From the next step on; what is returned takes it away again."""
    engine.loop.call(lambda core: core.wrap(lambda inner: Around(inner, run))).result()

    def undo(core: Core) -> None:
        core.wrap(lambda outer: outer.inner if isinstance(outer, Around) else outer)

    return lambda: engine.loop.call(undo).result()
