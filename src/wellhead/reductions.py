"""What can become of the chosen rows of a layer. A new reduction is a class here and a line in ``REDUCTIONS``.

Rows are taken one by one in ascending order of position, in float64 where they are added, so that a result depends neither
on how a prompt was cut into chunks nor on what ran beside it. Of no rows every number is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Reduction(Protocol):
    """The state of one layer; its size does not depend on how many rows there are."""

    def add(self, rows: NDArray[np.float32]) -> None:
        """Take the next rows ``[k, W]``."""
        ...

    def result(self) -> NDArray[np.float32]:
        """The reduced row ``[W]``."""
        ...


class Sum:
    """The sum of the rows."""

    def __init__(self, width: int) -> None:
        self.total = np.zeros(width, np.float64)
        self.count = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        for row in rows:
            self.count += 1
            self.total += self.weigh(row)

    def weigh(self, row: NDArray[np.float32]) -> NDArray[Any]:
        """What row number ``count`` (from 1) contributes."""
        return row

    def divisor(self) -> float:
        return 1.0

    def result(self) -> NDArray[np.float32]:
        if not self.count:
            return np.full(len(self.total), np.nan, np.float32)
        return (self.total / self.divisor()).astype(np.float32)


class Mean(Sum):
    """The sum over n."""

    def divisor(self) -> float:
        return self.count


class MeanSqrt(Sum):
    """The sum over the square root of n (sentence-transformers' ``pooling_mode_mean_sqrt_len_tokens``)."""

    def divisor(self) -> float:
        return float(np.sqrt(self.count))


class WeightedMean(Sum):
    """Rows weighted 1, 2, 3, ... (Muennighoff 2022, SGPT, arXiv:2202.08904, formula 2)."""

    def weigh(self, row: NDArray[np.float32]) -> NDArray[Any]:
        return row.astype(np.float64) * self.count

    def divisor(self) -> float:
        return self.count * (self.count + 1) / 2


class Max:
    """The largest number of each coordinate."""

    def __init__(self, width: int) -> None:
        self._most = np.full(width, np.nan, np.float32)

    def add(self, rows: NDArray[np.float32]) -> None:
        for row in rows:
            np.fmax(self._most, row, out=self._most)

    def result(self) -> NDArray[np.float32]:
        return self._most


#: What stays as it is: all chosen rows ``[k, W]``, or the first of them ``[W]``, in the dtype in which they were computed.
ROWS, FIRST = "rows", "first"

#: By name: from the width of a row to a new state. ``None``: nothing is computed, see ``ROWS`` and ``FIRST``.
REDUCTIONS: Mapping[str, Callable[[int], Reduction] | None] = MappingProxyType(
    {
        ROWS: None,
        "mean": Mean,
        "sum": Sum,
        "max": Max,
        FIRST: None,
        "weighted_mean": WeightedMean,
        "mean_sqrt": MeanSqrt,
    }
)
