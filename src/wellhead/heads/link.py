"""Scores -> probabilities: calibration, then activation.

Calibration: ``{"kind": "temperature", "t"}`` divides the scores before the activation; ``{"kind": "platt", "a": [..], "b":
[..]}``
is ``sigmoid(a z + b)`` for each column; ``{"kind": "isotonic"}`` a table for each column (tensors ``calibration.i.x``, ``.y``),
linear between
its points and constant outside. Platt's and isotonic's columns are divided by their sum where there are several labels in
competition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wellhead.errors import InvalidHead
from wellhead.heads.products import Array, sums
from wellhead.heads.program import Tensors, sigmoid, softmax, tensor

#: ``ovr``: a sigmoid for each label, divided by their sum. ``identity``: a margin or a value; there are no probabilities.
LINKS = ("identity", "sigmoid", "softmax", "ovr")


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """``[k, C]`` -> ``[k, labels]``; one column for two labels is the second one's. ``exclusive``: one label is the right one."""

    activation: str
    kind: str | None
    a: Array
    b: Array
    tables: tuple[tuple[Array, Array], ...]
    pair: bool
    exclusive: bool

    @staticmethod
    def of(activation: Any, calibration: Any, columns: int, labels: tuple[str, ...], tensors: Tensors) -> Link:
        """Raises ``InvalidHead`` for what does not fit together."""
        if activation not in LINKS:
            raise InvalidHead(f"activation must be one of {', '.join(LINKS)}, not {activation!r:.80}")
        pair = columns == 1 and len(labels) == 2
        if not pair and columns != len(labels):
            raise InvalidHead(f"{columns} scores for {len(labels)} labels")
        if activation in ("softmax", "ovr") and columns == 1:
            raise InvalidHead(f"{activation} over one score is always 1: use sigmoid")
        kind, a, b, tables = None, np.ones(columns), np.zeros(columns), list[tuple[Array, Array]]()
        if calibration is not None:
            kind = calibration.get("kind") if isinstance(calibration, Mapping) else None
            if kind == "temperature":
                a = 1.0 / _numbers(calibration.get("t"), columns, "t", positive=True)
            elif kind == "platt":
                a, b = (_numbers(calibration.get(name), columns, name) for name in ("a", "b"))
            elif kind == "isotonic":
                tables = [_table(tensors, i) for i in range(columns)]
            else:
                raise InvalidHead(f"calibration must be temperature, platt or isotonic, not {calibration!r:.80}")
        exclusive = pair or (columns > 1 and activation != "sigmoid")
        return Link(activation, kind, a, b, tuple(tables), pair, exclusive)

    def __call__(self, scores: Array) -> Array:
        p = self._columns(scores)
        if self.pair and (self.activation != "identity" or self.kind in ("platt", "isotonic")):
            return np.concatenate([1.0 - p, p], axis=1)
        return p

    def _columns(self, z: Array) -> Array:
        if self.kind == "isotonic":
            return self._shared(np.stack([np.interp(z[:, i], x, y) for i, (x, y) in enumerate(self.tables)], axis=1))
        if self.kind == "platt":
            return self._shared(sigmoid(z * self.a + self.b))
        if self.kind == "temperature":
            z = z * self.a
        if self.activation == "softmax":
            return softmax(z)
        if self.activation == "identity":
            return z
        return self._shared(sigmoid(z)) if self.activation == "ovr" else sigmoid(z)

    def _shared(self, p: Array) -> Array:
        if not self.exclusive or p.shape[1] == 1:
            return p
        total = sums(p)
        return np.where(total > 0, p / np.where(total > 0, total, 1.0), 1.0 / p.shape[1])


def _numbers(said: Any, columns: int, name: str, positive: bool = False) -> Array:
    try:
        values = np.broadcast_to(np.asarray(said, np.float64), columns).copy()
    except (ValueError, TypeError) as error:
        raise InvalidHead(f"calibration: {name} must be a number or {columns} of them") from error
    if not np.isfinite(values).all() or (positive and not np.all(values > 0)):
        raise InvalidHead(f"calibration: {name} must be {'positive' if positive else 'finite'}")
    return values


def _table(tensors: Tensors, i: int) -> tuple[Array, Array]:
    x = tensor(tensors, f"calibration.{i}.x", None).astype(np.float64)
    y = tensor(tensors, f"calibration.{i}.y", len(x)).astype(np.float64)
    if not len(x) or np.any(np.diff(x) < 0) or np.any((y < 0) | (y > 1)):
        raise InvalidHead(f"calibration.{i}: a table needs ascending points and probabilities in [0, 1]")
    return x, y
