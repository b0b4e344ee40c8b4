"""A histogram that costs next to nothing to fill."""

from __future__ import annotations

from bisect import bisect_left

#: Seconds: from a cached vector to a long generation on a slow machine.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts by upper bound (the last one has none), and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """A copy that nobody fills."""
        same = Histogram(self.bounds)
        same.counts, same.sum = list(self.counts), self.sum
        return same

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's buckets: upper bound as text, how many were at most that."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets
