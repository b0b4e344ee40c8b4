"""JSON straight off numpy buffers. Anything large comes in pieces, so that no thread is held up for long.

NaN and infinities are written as ``null``: JSON has no word for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.encoding.vectors import Layer, Vectors, layer_of, rebuild
from wellhead.errors import InvalidRequest

MEDIA_TYPE = "application/json"

#: A value that weighs at most this much (see ``weigh``) is written at once.
GROUP = 32_768
#: Pieces are gathered until they have this many bytes.
PIECE_BYTES = 256 << 10


def dumps(value: Any) -> bytes:
    """The whole of a value at once. Arrays must be contiguous, keys strings."""
    import orjson

    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def plain(value: Any) -> Any:
    """A value whose arrays are lists: for what ``dumps`` does not write."""
    return loads(dumps(value))


def loads(body: bytes | memoryview) -> Any:
    """Parse; ``ValueError`` if it is not JSON."""
    try:
        import orjson
    except ImportError:
        return json.loads(bytes(body))
    return orjson.loads(body)


def weigh(value: Any) -> int:
    """About how many numbers and strings a value holds."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return 1 + len(value) // 16
    if isinstance(value, Mapping):
        return 1 + sum(map(weigh, value.values()))
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):
            return len(value)
        return 1 + sum(map(weigh, value))
    return 1


def chunks(value: Any) -> Iterator[bytes]:
    """The bytes of ``dumps(value)`` in pieces of some 100 KiB."""
    held: list[bytes] = []
    size = 0
    for part in _parts(value):
        held.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _parts(value: Any) -> Iterator[bytes]:
    if weigh(value) <= GROUP:
        yield dumps(value)
    elif isinstance(value, np.ndarray) and value.ndim > 1:
        yield from _array(value)
    elif isinstance(value, Mapping):
        yield b"{"
        for i, (key, item) in enumerate(value.items()):
            yield (b"," if i else b"") + dumps(str(key)) + b":"
            yield from _parts(item)
        yield b"}"
    elif isinstance(value, (list, tuple)):
        yield from _list(value)
    else:
        yield dumps(value)


def _array(rows: NDArray[Any]) -> Iterator[bytes]:
    most = max(1, GROUP // max(1, rows[0].size))
    for at in range(0, len(rows), most):
        yield (b"," if at else b"[") + dumps(rows[at : at + most])[1:-1]
    yield b"]"


def _list(items: Iterable[Any]) -> Iterator[bytes]:
    held: list[Any] = []
    weight, first = 0, True
    yield b"["
    for item in items:
        heavy = weigh(item)
        if held and weight + heavy > GROUP:
            yield (b"" if first else b",") + dumps(held)[1:-1]
            held, weight, first = [], 0, False
        if heavy > GROUP:
            yield b"" if first else b","
            yield from _parts(item)
            first = False
        else:
            held.append(item)
            weight += heavy
    if held:
        yield (b"" if first else b",") + dumps(held)[1:-1]
    yield b"]"


def encode(vectors: Vectors) -> tuple[int | None, Iterator[bytes]]:
    """``{..facts, "data": [{"index", "positions", "hidden_states"}]}``: nested lists of float32, by layer if layers were asked
    for; ``token_ids`` beside the positions where they are known."""
    return None, _encode(vectors)


def _encode(vectors: Vectors) -> Iterator[bytes]:
    facts = {**vectors.facts, "object": "list", "dtype": "float32", "full": vectors.full}
    yield dumps(facts)[:-1] + b',"data":['
    for i, states in enumerate(vectors.states):
        if vectors.layers == (None,):
            value: Any = states.numpy()
        else:
            value = {str(layer): states.numpy(layer) for layer in vectors.layers}
        label: dict[str, Any] = {"index": i, "positions": states.positions}
        if states.token_ids is not None:
            label["token_ids"] = states.token_ids
        yield (b"," if i else b"") + dumps(label)[:-1] + b',"hidden_states":'
        yield from _parts(value)
        yield b"}"
    yield b"]}"


def decode(body: bytes | memoryview) -> Vectors:
    """What ``encode`` wrote, as float32."""
    try:
        value = loads(body)
        data = value.pop("data")
        full = bool(value["full"])
        first = data[0]["hidden_states"]
        positions = [np.array(item["positions"], np.int64).reshape(-1) for item in data]
        tokens = [np.array(item["token_ids"], np.int32).reshape(-1) for item in data] if "token_ids" in data[0] else None
        layers: list[Layer] = [_layer(la) for la in first] if isinstance(first, dict) else [None]
        arrays: dict[Layer, list[NDArray[Any]]] = {}
        for layer in layers:
            found = (item["hidden_states"] if layer is None else item["hidden_states"][str(layer)] for item in data)
            arrays[layer] = _shaped([np.array(rows, np.float32) for rows in found], full)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"not an answer of hidden states: {error!r}") from error
    return rebuild(arrays, positions, "float32", full, value, tokens)


def _shaped(found: list[NDArray[np.float32]], full: bool) -> list[NDArray[np.float32]]:
    """Where there are no rows, JSON does not say how wide they would be: as wide as others, or 0."""
    width = max((rows.shape[-1] for rows in found if rows.ndim == 2), default=0)
    return [rows.reshape(0, width) if full and not rows.size and rows.ndim == 1 else rows for rows in found]


def _layer(key: str) -> int | str:
    """A layer's key in an object: JSON has no numbers there."""
    return layer_of(f"hidden_states.{key}") or 0
