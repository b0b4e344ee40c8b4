"""Several heads on the same rows: one pass over them, and the bits that each would have alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead
from wellhead.heads.head import Head
from wellhead.heads.products import Array, aligned, products
from wellhead.heads.program import Dense


class Together:
    """Heads of one width. Those that are one product (linear ones, with whatever steps were folded into them) share it.

    Each output is a dot product of its own, so that sharing changes no bit.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        if len({head.width for head in heads}) > 1:
            raise InvalidHead("heads of several widths do not read the same rows")
        self._heads = tuple(heads)
        self._at: dict[int, slice] = {}
        weights: list[Array] = []
        biases: list[Array] = []
        count = 0
        for i, head in enumerate(heads):
            program = head.evaluator.program
            if program is not None and len(program.ops) == 1 and isinstance(program.ops[0], Dense):
                op = program.ops[0]
                weights.append(op.weight)
                biases.append(op.bias)
                self._at[i] = slice(count, count + len(op.weight))
                count += len(op.weight)
        self._weight = aligned(np.concatenate(weights)) if weights else None
        self._bias = np.concatenate(biases) if biases else np.zeros(0)

    def features(self, rows: NDArray[np.floating]) -> list[NDArray[np.float32] | None]:
        """``Head.features`` of each head, in order; ``None`` where a head's are not finite: the others are not concerned."""
        shared = self._shared(rows)
        return [self._one(i, head, rows, shared) for i, head in enumerate(self._heads)]

    def _shared(self, rows: NDArray[np.floating]) -> Array:
        weight = self._weight
        if weight is None:
            return np.zeros((len(rows), 0))
        return self._heads[0].exact(rows, lambda x: products(aligned(x), weight) + self._bias)

    def _one(self, i: int, head: Head, rows: NDArray[np.floating], shared: Array) -> NDArray[np.float32] | None:
        exact = shared[:, self._at[i]] if i in self._at else head.exact(rows, head.evaluator.features)
        with np.errstate(over="ignore"):
            rounded = exact.astype(np.float32)
        return rounded if np.isfinite(rounded).all() else None
