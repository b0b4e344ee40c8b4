"""Where requests spend their time: waiting, until the first token, in all."""

from __future__ import annotations

import time
from dataclasses import dataclass

from wellhead.metrics.histogram import Histogram
from wellhead.step import Plan
from wellhead.types import Output


@dataclass(slots=True)
class _Times:
    arrived: float
    begun: float | None = None
    first: float | None = None


class Latencies:
    """Histograms over finished and running requests, in seconds. ``queue``: until a step first works on the request;
    ``prefill``: from there to its first token (or its end, if it generates none); ``total``: all of it."""

    def __init__(self) -> None:
        self.queue, self.prefill, self.total = Histogram(), Histogram(), Histogram()
        self._open: dict[str, _Times] = {}

    def copies(self) -> dict[str, Histogram]:
        """The histograms as they are now, by name."""
        return {"queue": self.queue.copy(), "prefill": self.prefill.copy(), "total": self.total.copy()}

    def arrive(self, key: str) -> None:
        self._open[key] = _Times(time.perf_counter())

    def begin(self, plan: Plan) -> None:
        """A step is about to run."""
        now = time.perf_counter()
        for row in plan.rows:
            times = self._open.get(row.key)
            if times is not None and times.begun is None:
                times.begun = now
                self.queue.observe(now - times.arrived)

    def end(self, plan: Plan) -> None:
        """A step has run."""
        now = time.perf_counter()
        for row in plan.rows:
            times = self._open.get(row.key)
            if times is not None and times.first is None and row.samples:
                self._first(times, now)

    def finish(self, outputs: list[Output]) -> None:
        """These outputs leave; terminal ones close their requests."""
        now = time.perf_counter()
        for output in outputs:
            times = self._open.pop(output.key, None) if output.terminal else None
            if times is not None and output.finish is not None and output.finish.kind != "abort":
                if times.first is None:
                    self._first(times, now)
                self.total.observe(now - times.arrived)

    def _first(self, times: _Times, now: float) -> None:
        times.first = now
        self.prefill.observe(now - (times.begun or times.arrived))
