"""What the rest of a job knows of where vectors come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from wellhead.frontends.bulk.input.inputs import Row
from wellhead.frontends.bulk.work.order import Done


@dataclass(slots=True)
class Usage:
    """Tokens of the prompts that are through, and how many of them came from the prefix cache."""

    tokens: int = 0
    cached: int = 0


class Source(Protocol):
    """Vectors of ``hidden_size`` numbers. ``usage``: of the rows that are through."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def usage(self) -> Usage: ...

    def facts(self) -> dict[str, Any]:
        """What of the engine decides the bits of a vector, as JSON has it."""
        ...

    def extract(self, rows: Iterator[Row]) -> Iterator[Done]:
        """Every row, in order."""
        ...
