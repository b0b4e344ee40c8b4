"""NumPy's own file format: one array and nothing else.

``[n, H]`` for one vector per prompt, ``[rows, H]`` for all rows of one prompt, with a leading axis of layers if layers were
asked for. bfloat16, which numpy lacks, is tagged as ``<V2`` (as ``ml_dtypes`` writes it): nobody takes it for numbers. It has
no place for positions, which go beside it as a line of text, see ``positions_line``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.encoding.vectors import Layer, Vectors, rebuild
from wellhead.errors import InvalidRequest
from wellhead.types import STORAGE, DType, Positions

MEDIA_TYPE = "application/x-npy"
_MAGIC = b"\x93NUMPY\x01\x00"
_DESCR: dict[DType, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<V2"}


def check(full: bool, prompts: int) -> None:
    """Raise ``InvalidRequest`` for what one array cannot hold."""
    if full and prompts != 1:
        raise InvalidRequest(
            f"application/x-npy holds one array: ask for all rows of one prompt, not of {prompts}, or accept another format",
            param="input",
        )


def encode(vectors: Vectors) -> tuple[int | None, Iterator[bytes]]:
    """Header, then rows, layer by layer."""
    check(vectors.full, len(vectors.states))
    rows = sum(vectors.counts())
    shape: tuple[int, ...] = (rows, vectors.hidden_size)
    if vectors.layers != (None,):
        shape = (len(vectors.layers), *shape)
    head = header(vectors.dtype, shape)
    itemsize = STORAGE[vectors.dtype].itemsize
    length = len(head) + rows * vectors.hidden_size * itemsize * len(vectors.layers)
    return length, _chunks(head, vectors)


def header(dtype: DType, shape: tuple[int, ...], size: int | None = None) -> bytes:
    """The head of a file, of ``size`` bytes or of the fewest that numpy's alignment allows."""
    text = f"{{'descr': '{_DESCR[dtype]}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    if size is None:
        size = -(-(len(_MAGIC) + 2 + len(text) + 1) // 64) * 64
    return _MAGIC + (size - 10).to_bytes(2, "little") + text.ljust(size - 11) + b"\n"


def positions_line(positions: list[Positions]) -> str:
    """Which rows of each prompt: ``;`` between prompts, ``,`` between runs, a run is ``first:stop``, or one number by itself.

    Two prompts, all three rows of the first and rows 4 and 6 of the second: ``0:3;4,6``.
    """
    return ";".join(",".join(_runs(at)) for at in positions)


def _runs(at: Positions) -> list[str]:
    ends = [*np.flatnonzero(np.diff(at) != 1).tolist(), len(at) - 1] if len(at) else []
    runs, first = [], 0
    for end in ends:
        runs.append(f"{at[first]}:{at[end] + 1}" if end > first else str(at[first]))
        first = end + 1
    return runs


def _chunks(head: bytes, vectors: Vectors) -> Iterator[bytes]:
    yield head
    for layer in vectors.layers:
        for group in vectors.groups(layer):
            yield group.tobytes()


def decode(body: bytes | memoryview) -> Vectors:
    """What ``encode`` wrote. Two-dimensional arrays are taken for one vector per prompt."""
    view = memoryview(body)
    try:
        if bytes(view[:8]) != _MAGIC:
            raise ValueError("not a .npy of version 1")
        start = 10 + int.from_bytes(view[8:10], "little")
        head = ast.literal_eval(bytes(view[10:start]).decode("latin1"))
        dtype = next(d for d, descr in _DESCR.items() if descr == head["descr"])
        rows: NDArray[Any] = np.frombuffer(view[start:], STORAGE[dtype]).reshape(head["shape"])
    except (ValueError, KeyError, TypeError, SyntaxError, StopIteration, MemoryError, RecursionError) as error:
        raise InvalidRequest(f"not a .npy of hidden states: {error!r}") from error
    arrays: dict[Layer, list[NDArray[Any]]]
    arrays = {None: list(rows)} if rows.ndim == 2 else {i: list(layer) for i, layer in enumerate(rows)}
    return rebuild(arrays, None, dtype, False, {})
