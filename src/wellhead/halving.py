"""The one rule for a batch that is refused as a whole: try its halves, until only what is wrong stays out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Halving(Generic[T]):
    """Batches to try, in the order of the items. Whoever tries one calls ``halve`` when it was refused; its halves come next."""

    def __init__(self, items: Sequence[T]) -> None:
        self._left: list[list[T]] = [list(items)] if items else []

    def __iter__(self) -> Iterator[list[T]]:
        while self._left:
            yield self._left.pop()

    def halve(self, batch: list[T]) -> bool:
        """Put the halves of a batch next in line. False: it is one item, which is then what is wrong."""
        if len(batch) == 1:
            return False
        half = len(batch) // 2
        self._left += [batch[half:], batch[:half]]
        return True
