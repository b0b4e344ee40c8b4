"""What every kind of head becomes: rows -> features -> scores.

``features`` ``[k, F]`` are what an aggregate reads of each row; for most kinds they are the scores themselves. ``scores``
``[k, C]`` are those of each row alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from wellhead.errors import InvalidHead
from wellhead.heads.products import Array
from wellhead.heads.program import Program, Tensors, build


@dataclass(frozen=True, slots=True)
class Plan:
    """What a kind is made from. ``body`` is the kind's own part of the file's JSON."""

    width: int
    labels: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]
    body: Mapping[str, Any]
    tensors: Tensors

    def program(self, stack: bool = False) -> Program:
        """The steps, and the layers of ``body["stack"]`` where the kind has them."""
        lists = [("steps", self.steps)]
        if stack:
            items = self.body.get("stack", [])
            if not isinstance(items, (list, tuple)):
                raise InvalidHead("stack must be a list of operations")
            lists.append(("stack", tuple(items)))
        return build(self.width, lists, self.tensors)


class Evaluator(Protocol):
    """``columns``: C. ``streams``: how features of rows become one score, or ``None`` if any aggregate will do."""

    @property
    def columns(self) -> int: ...

    @property
    def streams(self) -> Literal["attention", "multimax"] | None: ...

    @property
    def program(self) -> Program | None:
        """The program that gives the features, if that is all there is to it: several heads can then share one product."""
        ...

    def features(self, rows: Array) -> Array: ...

    def scores(self, features: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A head whose features are its scores."""

    program: Program
    streams: None = None

    @property
    def columns(self) -> int:
        return self.program.out

    def features(self, rows: Array) -> Array:
        return self.program(rows)

    def scores(self, features: Array) -> Array:
        return features
