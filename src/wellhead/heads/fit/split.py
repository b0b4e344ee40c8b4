"""Which rows are learned from, which calibrate, which judge. Groups stay together; each label's groups are dealt out in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def deal(groups: NDArray[np.int64], codes: NDArray[np.int32], shares: Sequence[float], seed: int) -> NDArray[np.int8]:
    """The part of each row, ``[n]``, by shares that add up to 1. A group counts for its first row's label."""
    names, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse)
    part = np.zeros(len(names), np.int8)
    random = np.random.default_rng(seed)
    for code in np.unique(codes[first]):
        mine = np.flatnonzero(codes[first] == code)
        mine = mine[random.permutation(len(mine))]
        # The largest groups first, each to where most rows are still wanted: no part is left empty by a large group.
        mine = mine[np.argsort(-sizes[mine], kind="stable")]
        wanted = np.asarray(shares) * sizes[mine].sum()
        for group in mine:
            part[group] = np.argmax(wanted)
            wanted[part[group]] -= sizes[group]
    return np.asarray(part[inverse])
