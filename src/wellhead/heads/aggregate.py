"""From the scores of rows, one after another, to one score: constant state, whatever the number of rows.

Rows are taken one by one in order, in float64, so that the result does not depend on how they came in chunks. ``update`` also
says what
the aggregate was after each row: where a threshold was crossed. A row with NaN or infinity is refused before anything is taken.

======================  ==========================================================================================================
``mean``                of all rows
``max``                 per score
``last``, ``first``     the latest (first) row's
``ema``                 ``e_j = a s_j + (1 - a) e_(j-1)``; ``start`` "zero" (default: e_0 = 0, low for the first 1/a rows) or
                        "first"
                        (e_1 = s_1); ``take`` "max" (default) or "last"
``window``              mean of the last ``size`` (16) rows, of those that there are at the beginning; ``take`` "last" (default)
                        or "max"
``softmax``             ``sum_j softmax_j(s / tau) s_j``, ``tau`` 1
``k_in_a_row``          the most that ``k`` (2) consecutive rows all reach: at least t exactly if k rows in a row reach t.
                        ``of`` "score" or
                        "argmax" (a row reaches 1 for its highest score, 0 for others). Minus infinity before k rows
``attention``           of the kinds of head that are made so; attention of ``window`` rows: the largest of each window of that
                        size
``multimax``
======================  ==========================================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InvalidHead, NonFinite
from wellhead.heads.products import Array


class Aggregate:
    """State of one request and one head. Features ``[k, F]`` in, scores ``[C]`` out; ``rows`` counts what was taken."""

    def __init__(self, features: int, columns: int) -> None:
        self.features, self.columns, self.rows = features, columns, 0
        self._value: Array = np.zeros(columns)

    def update(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        """Take k rows; the aggregate after each of them, float32 ``[k, C]``. ``NonFinite``, and nothing taken, for a bad row."""
        if features.ndim != 2 or features.shape[1] != self.features:
            raise InvalidHead(f"an aggregate of {self.features} features was given an array of shape {features.shape}")
        if not np.isfinite(features).all():
            raise NonFinite("a row's score is NaN or infinite: the aggregate does not take it")
        out = np.empty((len(features), self.columns), np.float32)
        for i, row in enumerate(features.astype(np.float64)):
            self._value = self._take(row)
            self.rows += 1
            out[i] = self._value
        return out

    def value(self) -> NDArray[np.float32] | None:
        """``[C]``; ``None`` if no row was taken: nothing was judged."""
        return self._value.astype(np.float32) if self.rows else None

    def copy(self) -> Aggregate:
        """An independent one in the same state: for a second sample of one prompt, or a draft that may be rejected."""
        return copy.deepcopy(self)

    def _take(self, row: Array) -> Array:
        """The aggregate with one more row; ``self.rows`` were taken before it. Returns a new array."""
        raise NotImplementedError


class Mean(Aggregate):
    def __init__(self, n: int) -> None:
        super().__init__(n, n)
        self._sum = np.zeros(n)

    def _take(self, row: Array) -> Array:
        self._sum += row
        return self._sum / (self.rows + 1)


class Max(Aggregate):
    def __init__(self, n: int) -> None:
        super().__init__(n, n)

    def _take(self, row: Array) -> Array:
        return np.maximum(self._value, row) if self.rows else row.copy()


class Last(Max):
    def _take(self, row: Array) -> Array:
        return row.copy()


class First(Max):
    def _take(self, row: Array) -> Array:
        return self._value if self.rows else row.copy()


class Peak(Aggregate):
    """An aggregate that has a value of now; what is said is that, or the highest that it has been."""

    def __init__(self, features: int, columns: int, take: str) -> None:
        super().__init__(features, columns)
        self._highest = take == "max"

    def _take(self, row: Array) -> Array:
        now = self._now(row)
        return np.maximum(self._value, now) if self._highest and self.rows else now

    def _now(self, row: Array) -> Array:
        raise NotImplementedError


class Ema(Peak):
    def __init__(self, n: int, a: float, start: str, take: str) -> None:
        super().__init__(n, n, take)
        self._a, self._from_first, self._e = a, start == "first", np.zeros(n)

    def _now(self, row: Array) -> Array:
        first = self._from_first and not self.rows
        self._e = row.copy() if first else self._a * row + (1.0 - self._a) * self._e
        return self._e


class Window(Peak):
    def __init__(self, n: int, size: int, take: str) -> None:
        super().__init__(n, n, take)
        self._ring = np.zeros((size, n))

    def _now(self, row: Array) -> Array:
        self._ring[self.rows % len(self._ring)] = row
        total, count = np.zeros(self.columns), min(self.rows + 1, len(self._ring))
        for kept in self._ring[:count]:
            total += kept
        return total / count


class InARow(Peak):
    def __init__(self, n: int, k: int, of: str) -> None:
        super().__init__(n, n, "max")
        self._ring, self._argmax = np.full((k, n), -np.inf), of == "argmax"

    def _now(self, row: Array) -> Array:
        self._ring[self.rows % len(self._ring)] = np.arange(len(row)) == row.argmax() if self._argmax else row
        return np.asarray(self._ring.min(axis=0))


class Weighted(Aggregate):
    """``sum_m sum_j softmax_j(q_mj) v_mj + bias`` with q ``[M, D]`` and v ``[M, D or C]``, kept as maximum, numerator,
    denominator."""

    def __init__(self, features: int, queries: tuple[int, ...], values: tuple[int, int], bias: Array) -> None:
        super().__init__(features, len(bias))
        self._queries, self._values, self._bias = queries, values, bias
        self._most = np.full(queries, -np.inf)
        self._below = np.zeros(queries)
        self._above = np.zeros(values)

    def _split(self, row: Array) -> tuple[Array, Array]:
        return row[: -int(np.prod(self._values))].reshape(self._queries), row[-int(np.prod(self._values)) :].reshape(self._values)

    def _take(self, row: Array) -> Array:
        q, v = self._split(row)
        most = np.maximum(self._most, q)
        fade, fresh = np.exp(self._most - most), np.exp(q - most)
        self._most, self._below, self._above = most, self._below * fade + fresh, self._above * fade + fresh * v
        return _added(self._above / self._below, self._bias)


class SoftmaxWeighted(Weighted):
    def __init__(self, n: int, tau: float) -> None:
        super().__init__(n, (1, n), (1, n), np.zeros(n))
        self._tau = tau

    def _split(self, row: Array) -> tuple[Array, Array]:
        return row[None] / self._tau, row[None]


class RollingAttention(Peak):
    def __init__(self, heads: int, bias: Array, size: int) -> None:
        super().__init__(heads * (1 + len(bias)), len(bias), "max")
        self._shape, self._bias = (heads, len(bias)), bias
        self._ring = np.zeros((size, heads * (1 + len(bias))))

    def _now(self, row: Array) -> Array:
        self._ring[self.rows % len(self._ring)] = row
        fresh = Weighted(self.features, (self._shape[0], 1), self._shape, self._bias)
        value = self._bias
        for kept in self._ring[: min(self.rows + 1, len(self._ring))]:
            value = fresh._take(kept)
        return value


class MultiMax(Aggregate):
    def __init__(self, heads: int, bias: Array) -> None:
        super().__init__(heads * len(bias), len(bias))
        self._most, self._bias = np.full((heads, len(bias)), -np.inf), bias

    def _take(self, row: Array) -> Array:
        self._most = np.maximum(self._most, row.reshape(self._most.shape))
        return _added(self._most, self._bias)


def _added(parts: Array, bias: Array) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return np.asarray(total + bias)


#: Fields and defaults of each aggregate; a field's default says its type.
FIELDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mean": {},
        "max": {},
        "last": {},
        "first": {},
        "ema": {"a": 0.5, "start": "zero", "take": "max"},
        "window": {"size": 16, "take": "last"},
        "softmax": {"tau": 1.0},
        "k_in_a_row": {"k": 2, "of": "score"},
        "attention": {"window": 0},
        "multimax": {},
    }
)
_WORDS = {"start": ("zero", "first"), "take": ("last", "max"), "of": ("score", "argmax")}
_MOST_WINDOW = 4096

_PLAIN: Mapping[str, Callable[..., Aggregate]] = MappingProxyType(
    {
        "mean": Mean,
        "max": Max,
        "last": Last,
        "first": First,
        "ema": Ema,
        "window": Window,
        "softmax": SoftmaxWeighted,
        "k_in_a_row": InARow,
    }
)


def checked(said: Any) -> tuple[str, dict[str, Any]]:
    """A word, or ``{"kind": word, ...}``, with its defaults filled in. ``InvalidHead`` for what is not known or out of range."""
    fields = {"kind": said} if isinstance(said, str) else dict(said) if isinstance(said, Mapping) else {}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidHead(f"unknown aggregate {said!r:.80}; known are {', '.join(FIELDS)}")
    unknown = sorted(set(fields) - set(FIELDS[kind]))
    if unknown:
        raise InvalidHead(f"aggregate {kind!r} has no field {unknown[0]!r:.80}")
    full = {**FIELDS[kind], **fields}
    for name, value in full.items():
        if name in _WORDS:
            good = value in _WORDS[name]
        elif name in ("a", "tau"):
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= (1 if name == "a" else 1e6)
        else:
            least = 0 if name == "window" else 1
            good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST_WINDOW
        if not good:
            raise InvalidHead(f"aggregate {kind!r}: {name} cannot be {value!r:.80}")
    return str(kind), full


def plain(said: Any, columns: int) -> Aggregate:
    """An aggregate over the scores of a head whose features are its scores."""
    kind, fields = checked(said)
    if kind not in _PLAIN:
        raise InvalidHead(f"aggregate {kind!r} needs a head of that kind")
    return _PLAIN[kind](columns, **fields)


def pooled(kind: str, heads: int, bias: Array, window: int = 0) -> Aggregate:
    """The aggregate of an attention or multimax head of ``heads`` and ``len(bias)`` scores."""
    if kind == "multimax":
        return MultiMax(heads, bias)
    if window:
        return RollingAttention(heads, bias, window)
    return Weighted(heads * (1 + len(bias)), (heads, 1), (heads, len(bias)), bias)
