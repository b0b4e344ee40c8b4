"""Counts, means and scatter by class: one pass over rows, exactly mergeable, float64. All closed-form fits come from these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments:
    """``counts`` ``[C]``, ``means`` ``[C, W]``, ``within`` ``[W, W]``: the classes' scatter about their own means, added up.

    No sum of squares is ever taken about 0: a mean of 1e6 with a spread of 1e-3 keeps its spread.
    """

    def __init__(self, width: int, classes: int) -> None:
        self.counts = np.zeros(classes)
        self.means = np.zeros((classes, width))
        self.within = np.zeros((width, width))

    def update(self, rows: NDArray[np.floating], codes: NDArray[np.integer]) -> None:
        """Take rows ``[k, W]`` of classes ``codes`` ``[k]``."""
        if not len(rows):
            return
        x = rows.astype(np.float64)
        counts = np.bincount(codes, minlength=len(self.counts)).astype(np.float64)
        means = np.zeros_like(self.means)
        for c in np.flatnonzero(counts):
            means[c] = x[codes == c].mean(axis=0)
            # A second pass takes out what rounding has left of the mean.
            means[c] += (x[codes == c] - means[c]).mean(axis=0)
        x -= means[codes]
        self._add(counts, means, x.T @ x)

    def merge(self, other: Moments) -> None:
        """As if the other's rows had been taken here."""
        self._add(other.counts, other.means, other.within)

    def _add(self, counts: Array, means: Array, within: Array) -> None:
        total = self.counts + counts
        safe = np.where(total > 0, total, 1.0)
        apart = means - self.means
        both = np.sqrt(self.counts * counts / safe)[:, None] * apart
        self.within += within + both.T @ both
        self.means += apart * (counts / safe)[:, None]
        self.counts = total

    @property
    def count(self) -> float:
        return float(self.counts.sum())

    @property
    def mean(self) -> Array:
        """``[W]``, of all rows."""
        return np.asarray(self.counts @ self.means / max(self.count, 1.0))

    def between(self) -> Array:
        """The class means about the mean, ``[C, W]``, each times the root of its count: its square is the scatter between
        classes."""
        return np.asarray(np.sqrt(self.counts)[:, None] * (self.means - self.mean))

    def total(self) -> Array:
        """Scatter of all rows about their mean ``[W, W]``."""
        apart = self.between()
        return np.asarray(self.within + apart.T @ apart)

    def scale(self) -> Array:
        """Standard deviation of each coordinate ``[W]``; 1 for a constant one."""
        spread = np.sqrt(np.diag(self.within) + (self.between() ** 2).sum(axis=0)) / np.sqrt(max(self.count, 1.0))
        constant = spread <= 10 * np.finfo(np.float64).eps * np.abs(self.mean)
        return np.where(constant | (spread == 0), 1.0, spread)


def merged(parts: list[Moments]) -> Moments:
    first = parts[0]
    out = Moments(first.means.shape[1], len(first.counts))
    for part in parts:
        out.merge(part)
    return out
