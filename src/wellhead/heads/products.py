"""Dot products whose bits depend on the two vectors alone.

A matrix product of BLAS adds in an order that follows from its shape, so that a row's score would depend on the rows beside it.
Here each output is a dot product of its own, over blocks of a fixed size, on memory of one alignment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Below the length from which a BLAS may share one dot product among threads: its order would follow their number.
_BLOCK = 4096
_ALIGN = 64


def aligned(values: NDArray[np.floating]) -> Array:
    """A float64 copy ``[n, W']`` of ``values`` ``[n, W]``: W' a multiple of 8, zeros behind, each row at a multiple of 64
    bytes."""
    count, width = values.shape
    padded = -(-width // 8) * 8
    raw = np.zeros(count * padded * 8 + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    out = raw[start : start + count * padded * 8].view(np.float64).reshape(count, padded)
    out[:, :width] = values
    return out


def products(rows: Array, weight: Array) -> Array:
    """``rows`` ``[k, W']`` by ``weight`` ``[C, W']``, both ``aligned`` -> ``[k, C]``."""
    out = np.vecdot(weight[None, :, :_BLOCK], rows[:, None, :_BLOCK])
    for at in range(_BLOCK, rows.shape[1], _BLOCK):
        out += np.vecdot(weight[None, :, at : at + _BLOCK], rows[:, None, at : at + _BLOCK])
    return np.asarray(out)


def sums(values: Array) -> Array:
    """The sum of each row of ``[k, n]`` -> ``[k, 1]``, in the order of ``products``."""
    one = aligned(np.ones((1, values.shape[1])))
    return products(aligned(values), one)
