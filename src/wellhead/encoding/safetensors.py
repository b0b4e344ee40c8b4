"""safetensors, written by hand: its numpy interface knows no bfloat16.

Tensors: ``hidden_states`` (or ``hidden_states.<layer>``) ``[n, H]``, one row per prompt; or, if all rows were asked for, the
rows of all prompts one after another ``[rows, H]``, with ``offsets`` int64 ``[n + 1]``: prompt i has the rows from
``offsets[i]`` to ``offsets[i + 1]``.
``positions`` (int64) are those of all prompts' rows one after another, with ``position_offsets`` int64 ``[n + 1]`` as above;
``token_ids`` (int64), if they were asked for, the tokens there.
The metadata's ``wellhead`` holds the facts as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.encoding.vectors import Layer, Vectors, layer_of, rebuild
from wellhead.errors import InvalidRequest
from wellhead.types import STORAGE, DType, Positions

MEDIA_TYPE = "application/vnd.safetensors"
#: safetensors' names of our dtypes.
DTYPE_NAME: dict[DType, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_MOST_HEADER = 64 << 20


def encode(vectors: Vectors) -> tuple[int | None, Iterator[bytes]]:
    """Header, offsets and positions, then rows, layer by layer."""
    counts = vectors.counts()
    rows, width = sum(counts), vectors.hidden_size
    tensors: dict[str, Any] = {"__metadata__": {"wellhead": json.dumps({**vectors.facts, "full": vectors.full})}}
    whole: dict[str, NDArray[Any]] = {}
    if vectors.full:
        whole["offsets"] = np.cumsum([0, *counts])
    positions = vectors.positions()
    whole["position_offsets"] = np.cumsum([0, *map(len, positions)])
    whole["positions"] = np.concatenate(positions)
    token_ids = vectors.token_ids()
    if token_ids is not None:
        whole["token_ids"] = np.concatenate(token_ids)
    numbers, at = b"", 0
    for name, array in whole.items():
        numbers += array.astype("<i8").tobytes()
        tensors[name] = {"dtype": "I64", "shape": [len(array)], "data_offsets": [at, len(numbers)]}
        at = len(numbers)
    size = rows * width * STORAGE[vectors.dtype].itemsize
    for name in vectors.names():
        tensors[name] = {"dtype": DTYPE_NAME[vectors.dtype], "shape": [rows, width], "data_offsets": [at, at + size]}
        at += size
    head = framed(json.dumps(tensors, separators=(",", ":")).encode()) + numbers
    return len(head) - len(numbers) + at, _chunks(head, vectors)


def framed(header: bytes) -> bytes:
    """A header's JSON as it stands at the head of a file: its length before it, blanks behind it up to a multiple of 8."""
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _chunks(head: bytes, vectors: Vectors) -> Iterator[bytes]:
    yield head
    for layer in vectors.layers:
        for group in vectors.groups(layer):
            yield group.tobytes()


def decode(body: bytes | memoryview) -> Vectors:
    """What ``encode`` wrote; the arrays are views of ``body``. ``InvalidRequest`` for anything torn or foreign."""
    try:
        return _decode(memoryview(body))
    except (ValueError, KeyError, TypeError, StopIteration, IndexError, AttributeError) as error:
        raise InvalidRequest(f"not a safetensors answer of hidden states: {error!r}") from error


def _decode(view: memoryview) -> Vectors:
    size = int.from_bytes(view[:8], "little")
    if size > min(_MOST_HEADER, len(view) - 8):
        raise ValueError(f"a header of {size} bytes in {len(view)}")
    tensors = json.loads(bytes(view[8 : 8 + size]))
    data = view[8 + size :]
    facts = json.loads(tensors.pop("__metadata__")["wellhead"])
    full = bool(facts.pop("full"))
    parts = _parts(data, tensors)
    cuts = np.frombuffer(parts.pop("offsets"), "<i8").tolist() if full else None
    positions, token_ids = _positions(parts)
    arrays: dict[Layer, list[NDArray[Any]]] = {}
    dtype: DType = "float32"
    for name, part in parts.items():
        dtype = next(d for d, said in DTYPE_NAME.items() if said == tensors[name]["dtype"])
        rows = np.frombuffer(part, STORAGE[dtype]).reshape(tensors[name]["shape"])
        if cuts is not None and (cuts[0] != 0 or cuts[-1] != len(rows) or cuts != sorted(cuts)):
            raise ValueError(f"offsets that do not divide {len(rows)} rows")
        spans = itertools.pairwise(cuts) if cuts is not None else ()
        arrays[layer_of(name)] = [rows[a:b] for a, b in spans] if cuts is not None else list(rows)
    return rebuild(arrays, positions, dtype, full, facts, token_ids)


def _positions(parts: dict[str, memoryview]) -> tuple[list[Positions], list[NDArray[np.int32]] | None]:
    """Those of each prompt, and the tokens there; takes them out of ``parts``."""
    cuts, at = (np.frombuffer(parts.pop(name), "<i8").astype(np.int64) for name in ("position_offsets", "positions"))
    if not len(cuts) or cuts[0] != 0 or cuts[-1] != len(at) or (np.diff(cuts) < 0).any():
        raise ValueError(f"position_offsets that do not divide {len(at)} positions")
    spans = list(itertools.pairwise(cuts.tolist()))
    tokens = np.frombuffer(parts.pop("token_ids"), "<i8").astype(np.int32) if "token_ids" in parts else None
    return [at[a:b] for a, b in spans], None if tokens is None else [tokens[a:b] for a, b in spans]


def _parts(data: memoryview, tensors: dict[str, Any]) -> dict[str, memoryview]:
    """The bytes of each tensor. They must lie one after another and fill the data: no gap, no overlap, nothing left."""
    parts, at = {}, 0
    for name, tensor in tensors.items():
        first, last = tensor["data_offsets"]
        if first != at or not first <= last <= len(data):
            raise ValueError(f"tensor {name!r:.80} at {first} to {last}, after {at}, in {len(data)} bytes")
        parts[name], at = data[first:last], last
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes that belong to no tensor")
    return parts
