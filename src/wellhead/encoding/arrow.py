"""Arrow's stream format: one record batch per row-group, one row per prompt.

Columns: ``index``, ``positions`` (a list of int64: which rows these are, or what was reduced), ``token_ids`` (likewise, if
they were asked for) and ``hidden_states`` (or ``hidden_states.<layer>``), a fixed-size list, or a list of those if there may be
any number of rows. bfloat16 is stored as uint16, and the field's metadata says so. The schema's metadata holds the facts as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellhead.encoding.vectors import GROUP_BYTES, Layer, Vectors, layer_of, rebuild
from wellhead.errors import InvalidRequest
from wellhead.types import STORAGE, DType, Positions

MEDIA_TYPE = "application/vnd.apache.arrow.stream"


class _Sink:
    """A file for pyarrow to write into; what it wrote is taken away after each batch."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        whole, self._parts = b"".join(self._parts), []
        return whole


def encode(vectors: Vectors) -> tuple[int | None, Iterator[bytes]]:
    """Schema, record batches, end."""
    return None, _encode(vectors)


def _encode(vectors: Vectors) -> Iterator[bytes]:
    import pyarrow as pa

    schema, sink = _schema(vectors), _Sink()
    writer = pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema)
    per_row = vectors.hidden_size * STORAGE[vectors.dtype].itemsize * len(vectors.layers)
    counts, token_ids = vectors.counts(), vectors.token_ids()
    at = 0
    while at < len(counts):
        end, size = at + 1, counts[at] * per_row
        while end < len(counts) and size + counts[end] * per_row <= GROUP_BYTES:
            size += counts[end] * per_row
            end += 1
        columns = [pa.array(np.arange(at, end, dtype=np.int32)), _lists([s.positions for s in vectors.states[at:end]])]
        columns += [_lists(token_ids[at:end])] if token_ids is not None else []
        columns += [_column(vectors, layer, at, end) for layer in vectors.layers]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        yield sink.take()
        at = end
    writer.close()
    yield sink.take()


def _schema(vectors: Vectors) -> Any:
    import pyarrow as pa

    kind = pa.list_(pa.from_numpy_dtype(STORAGE[vectors.dtype]), vectors.hidden_size)
    kind = pa.list_(kind) if vectors.full else kind
    tag = {"dtype": vectors.dtype}
    fields = [pa.field("index", pa.int32(), nullable=False), pa.field("positions", pa.list_(pa.int64()), nullable=False)]
    if vectors.token_ids() is not None:
        fields.append(pa.field("token_ids", pa.list_(pa.int64()), nullable=False))
    fields += [pa.field(name, kind, nullable=False, metadata=tag) for name in vectors.names()]
    return pa.schema(fields, metadata={"wellhead": json.dumps({**vectors.facts, "full": vectors.full})})


def _lists(parts: Sequence[NDArray[Any]]) -> Any:
    import pyarrow as pa

    cuts = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(cuts), pa.array(np.concatenate(parts).astype(np.int64), pa.int64()))


def _column(vectors: Vectors, layer: Layer, at: int, end: int) -> Any:
    import pyarrow as pa

    parts = [np.atleast_2d(vectors.cast(i, layer)) for i in range(at, end)]
    flat = pa.array(np.concatenate(parts).reshape(-1), pa.from_numpy_dtype(STORAGE[vectors.dtype]))
    rows = pa.FixedSizeListArray.from_arrays(flat, vectors.hidden_size)
    if not vectors.full:
        return rows
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *map(len, parts)], dtype=np.int32)), rows)


def decode(body: bytes | memoryview) -> Vectors:
    """What ``encode`` wrote. ``InvalidRequest`` for anything else."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        facts = json.loads(reader.schema.metadata[b"wellhead"])
        full = bool(facts.pop("full"))
        names = [name for name in reader.schema.names if name not in ("index", "positions", "token_ids")]
        dtype: DType = reader.schema.field(names[0]).metadata[b"dtype"].decode()
        arrays: dict[Layer, list[NDArray[Any]]] = {layer_of(name): [] for name in names}
        positions: list[Positions] = []
        tokens: list[NDArray[np.int32]] | None = [] if "token_ids" in reader.schema.names else None
        for batch in reader:
            batch.validate(full=True)
            positions += _cut(batch.column(batch.schema.get_field_index("positions")))
            if tokens is not None:
                tokens += [t.astype(np.int32) for t in _cut(batch.column(batch.schema.get_field_index("token_ids")))]
            for name in names:
                arrays[layer_of(name)] += _rows(batch.column(batch.schema.get_field_index(name)), full)
    except (pa.ArrowException, OSError, AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidRequest(f"not an arrow stream of hidden states: {error!r}") from error
    return rebuild(arrays, positions, dtype, full, facts, tokens)


def _cut(column: Any) -> list[Positions]:
    """A column of lists of whole numbers -> an array per row."""
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    cuts = (column.offsets.to_numpy() - column.offsets[0].as_py()).tolist()
    return [values[a:b] for a, b in itertools.pairwise(cuts)]


def _rows(column: Any, full: bool) -> list[NDArray[Any]]:
    vectors = column.flatten() if full else column
    rows = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, vectors.type.list_size)
    if not full:
        return list(rows)
    cuts = (column.offsets.to_numpy() - column.offsets[0].as_py()).tolist()
    return [rows[a:b] for a, b in itertools.pairwise(cuts)]
