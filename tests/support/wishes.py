"""Words for rows, and by hand which positions they mean: P prompt tokens, ``tokens`` of all rows of prompt and answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.tags import reduced

Meaning = Callable[[int, list[int]], list[int]]

#: Tokens that are picked or left out by name.
PICKED = tuple(range(0, 272, 3))

#: The words, whether one row is meant, and the positions: those that the ceiling ``last`` serves, and those that need ``full``.
CHEAP: list[tuple[Any, bool, Meaning]] = [
    ("last", True, lambda p, t: [len(t) - 1]),
    (-1, True, lambda p, t: [len(t) - 1]),
    (-3, True, lambda p, t: [len(t) - 3]),
    ("-8:", False, lambda p, t: list(range(len(t)))[-8:]),
    ("-9:-2:3", False, lambda p, t: list(range(len(t)))[-9:-2:3]),
    ([-1, -4], False, lambda p, t: [len(t) - 4, len(t) - 1]),
    ({"last": 8}, False, lambda p, t: list(range(len(t)))[-8:]),
    ({"last": 3, "exclude": {"positions": [-1, -2]}}, False, lambda p, t: list(range(len(t) - 2))[-3:]),
    ({"last": 5, "token_ids": list(PICKED)}, False, lambda p, t: [i for i, x in enumerate(t) if x in PICKED][-5:]),
    ("output", False, lambda p, t: list(range(p, len(t)))),
    ({"part": "output", "stop": 3}, False, lambda p, t: list(range(p, len(t)))[:3]),
    ({"part": "output", "start": -2}, False, lambda p, t: list(range(p, len(t)))[-2:]),
    ({"part": "output", "token_ids": list(PICKED)}, False, lambda p, t: [i for i in range(p, len(t)) if t[i] in PICKED]),
    ({"part": "prompt", "last": 4}, False, lambda p, t: list(range(p))[-4:]),
    ({"part": "prompt", "start": -5, "stop": -1}, False, lambda p, t: list(range(p))[-5:-1]),
    ({"start": 1, "stop": 9, "last": 2}, False, lambda p, t: list(range(len(t)))[1:9][-2:]),
]  # fmt: skip
DEAR: list[tuple[Any, bool, Meaning]] = [
    ("all", False, lambda p, t: list(range(len(t)))),
    ("prompt", False, lambda p, t: list(range(p))),
    (0, True, lambda p, t: [0]),
    ("5:", False, lambda p, t: list(range(len(t)))[5:]),
    (":-4", False, lambda p, t: list(range(len(t)))[:-4]),
    ("2:20:3", False, lambda p, t: list(range(len(t)))[2:20:3]),
    ([7, 0, -1], False, lambda p, t: [0, 7, len(t) - 1]),
    ({"token_ids": list(PICKED)}, False, lambda p, t: [i for i, x in enumerate(t) if x in PICKED]),
    ({"exclude": {"token_ids": list(PICKED)}}, False, lambda p, t: [i for i, x in enumerate(t) if x not in PICKED]),
    ({"exclude": {"positions": [0, -1]}}, False, lambda p, t: list(range(len(t)))[1:-1]),
    ({"part": "prompt", "start": 2, "step": 5}, False, lambda p, t: list(range(2, p, 5))),
    ({"positions": [], "part": "prompt"}, False, lambda p, t: []),
]  # fmt: skip
WISHES = CHEAP + DEAR


def wished(rows: NDArray[np.float32], one: bool, positions: list[int], reduce: str | None) -> NDArray[np.float32]:
    """What must come out of all rows ``[T, W]``."""
    return reduced(rows[positions], reduce or ("first" if one else "rows"))
