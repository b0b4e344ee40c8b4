"""The columns of an output, and rows gathered under them until there are enough to be written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wellhead.errors import InternalError, InvalidConfig
from wellhead.frontends.bulk.input.carry import Carried, CarryType, gathered
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.work.order import Done
from wellhead.types import STORAGE, DType, HiddenStates, narrow

#: A group of rows is written when it holds this many bytes, or this many rows.
GROUP_BYTES = 4 << 20
GROUP_ROWS = 1 << 10
_INT32S = pa.list_(pa.int32())


@dataclass(frozen=True, slots=True)
class VectorColumn:
    """``layer``: as it was asked for; None: the final one."""

    name: str
    template: int
    layer: int | str | None


@dataclass(frozen=True, slots=True)
class Schema:
    """Names in the order in which they are written: ``row``, ``id``, carried columns, facts of prompts, vectors.

    With several templates the columns of template k end in ``_k``.
    """

    vectors: tuple[VectorColumn, ...]
    carries: tuple[CarryType, ...]
    dtype: DType
    hidden_size: int
    full: bool
    labelled: bool
    cut: tuple[str, ...]
    token_ids: tuple[str, ...]
    texts: tuple[str, ...]
    positions: tuple[str, ...]
    row_tokens: tuple[str, ...]
    metadata: dict[str, str]

    @staticmethod
    def of(options: Options, carries: tuple[CarryType, ...], hidden_size: int) -> Schema:
        """Raises ``InvalidConfig`` if a carried column has the name of one of ours."""
        count, wish = len(options.templates), options.wish
        layers: tuple[int | str | None, ...] = wish.layers or (None,)
        vectors = tuple(
            VectorColumn(_name("vector" if layer is None else f"layer_{layer}", t, count), t, layer)
            for t in range(count)
            for layer in layers
        )
        metadata = {**wish.metadata(), "wellhead.dtype": options.dtype}
        for t, template in enumerate(options.templates):
            metadata[_name("wellhead.template", t, count)] = template.source
        schema = Schema(
            vectors, carries, options.dtype, hidden_size, wish.full, wish.labelled,
            _names("truncated", count, options.truncate is not None), _names("token_ids", count, options.save_token_ids),
            _names("text", count, options.save_texts), _names("positions", count, wish.labelled),
            _names("token_ids", count, wish.token_ids), metadata,
        )  # fmt: skip
        names = [f.name for f in (*schema.facts(), *schema.labels(), *schema.vector_fields())]
        for name in names:
            if names.count(name) > 1:
                raise InvalidConfig(f"--carry {name}: the output has a column {name!r} of its own", param="carry")
        return schema

    @property
    def row_bytes(self) -> int:
        """Of one vector under every vector column."""
        return len(self.vectors) * self.hidden_size * STORAGE[self.dtype].itemsize

    def to_list(self) -> list[dict[str, Any]]:
        """As the manifest has it."""
        return [{"name": f.name, "type": str(f.type)} for f in (*self.facts(), *self.labels(), *self.vector_fields())]

    def facts(self) -> list[pa.Field]:
        """Fields of all columns but labels and vectors."""
        fields = [pa.field("row", pa.int64(), nullable=False), pa.field("id", pa.string(), nullable=False)]
        fields += [pa.field(c.name, c.type) for c in self.carries]
        fields += [pa.field(name, pa.int32(), nullable=False) for name in self.cut]
        fields += [pa.field(name, _INT32S, nullable=False) for name in self.token_ids]
        return fields + [pa.field(name, pa.string(), nullable=False) for name in self.texts]

    def labels(self) -> list[pa.Field]:
        """Fields that say which rows a prompt's vectors are, or were made of, and their tokens."""
        return [pa.field(name, _INT32S, nullable=False) for name in (*self.positions, *self.row_tokens)]

    def vector_fields(self) -> list[pa.Field]:
        item = pa.field("item", pa.from_numpy_dtype(STORAGE[self.dtype]), nullable=False)
        kind = pa.list_(item, self.hidden_size)
        if self.full:
            kind = pa.list_(pa.field("item", kind, nullable=False))
        null = self.labelled and not self.full
        return [pa.field(c.name, kind, nullable=null, metadata={b"dtype": self.dtype.encode()}) for c in self.vectors]


def _name(base: str, template: int, count: int) -> str:
    return base if count == 1 else f"{base}_{template}"


def _names(base: str, count: int, wanted: bool) -> tuple[str, ...]:
    return tuple(_name(base, t, count) for t in range(count)) if wanted else ()


@dataclass(slots=True)
class Group:
    """Rows under a schema. ``vectors``: per column a list of ``[H]`` or ``[rows_i, H]``, in the storage of the output's dtype."""

    schema: Schema
    rows: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    cut: list[tuple[int, ...]] = field(default_factory=list)
    token_ids: list[tuple[NDArray[np.int32], ...]] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    positions: list[tuple[NDArray[np.int32], ...]] = field(default_factory=list)
    row_tokens: list[tuple[NDArray[np.int32], ...]] = field(default_factory=list)
    vectors: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def full(self) -> bool:
        return self.bytes >= GROUP_BYTES or len(self.rows) >= GROUP_ROWS

    def add(self, done: Done) -> None:
        """Take a row that has its vectors."""
        row, prompts, schema = done.item.row, done.item.prompts, self.schema
        self.rows.append(row.number)
        self.ids.append(row.id)
        self.carried.append(row.carried)
        self.cut.append(tuple(p.cut for p in prompts))
        if schema.token_ids:
            self.token_ids.append(tuple(np.array(p.ids, np.int32) for p in prompts))
            self.bytes += 4 * done.item.tokens
        if schema.texts:
            self.texts.append(tuple(p.text for p in prompts))
            self.bytes += sum(len(p.text) for p in prompts)
        for labels, names, made in (
            (self.positions, schema.positions, positions_of),
            (self.row_tokens, schema.row_tokens, tokens_of),
        ):
            if names:
                labels.append(tuple(made(states) for states in done.states))
                self.bytes += sum(label.nbytes for label in labels[-1])
        for column in schema.vectors:
            rows = stored(done.states[column.template], column.layer, schema.dtype)
            self.vectors.setdefault(column.name, []).append(rows)
            self.bytes += rows.nbytes
        self.bytes += len(row.id) + row.carried.size

    def facts(self) -> list[pa.Array]:
        """The columns of ``Schema.facts``."""
        schema = self.schema
        columns = [pa.array(self.rows, pa.int64()), pa.array(self.ids, pa.string())]
        columns += [gathered(self.carried, i, c.type) for i, c in enumerate(schema.carries)]
        columns += [pa.array([cuts[t] for cuts in self.cut], pa.int32()) for t in range(len(schema.cut))]
        columns += [pa.array([ids[t] for ids in self.token_ids], _INT32S) for t in range(len(schema.token_ids))]
        return columns + [pa.array([texts[t] for texts in self.texts], pa.string()) for t in range(len(schema.texts))]

    def labels(self) -> list[pa.Array]:
        """The columns of ``Schema.labels``."""
        columns = [pa.array([at[t] for at in self.positions], _INT32S) for t in range(len(self.schema.positions))]
        return columns + [pa.array([ids[t] for ids in self.row_tokens], _INT32S) for t in range(len(self.schema.row_tokens))]

    def nothing(self, column: VectorColumn) -> NDArray[np.bool_]:
        """Which vectors were made of no row at all."""
        return np.array([not len(at[column.template]) for at in self.positions], bool)

    def stacked(self, column: VectorColumn) -> NDArray[Any]:
        """``[n, H]``, or in full mode all rows of all texts, ``[sum of rows_i, H]``."""
        rows = self.vectors.get(column.name, [])
        if not rows:
            return np.empty((0, self.schema.hidden_size), STORAGE[self.schema.dtype])
        return np.concatenate(rows) if self.schema.full else np.stack(rows)

    def lengths(self, column: VectorColumn) -> list[int]:
        """In full mode: how many rows each text has."""
        return [len(rows) for rows in self.vectors.get(column.name, [])]


def stored(states: HiddenStates, layer: int | str | None, dtype: DType) -> NDArray[Any]:
    """One layer in the storage of ``dtype``."""
    rows = states.stored(layer, dtype)
    return no_vector(len(rows), dtype) if rows.ndim == 1 and not len(states.positions) else rows


def no_vector(width: int, dtype: DType) -> NDArray[Any]:
    """What is made of no rows: NaN, and the same bits of it wherever that was computed."""
    return narrow(np.full(width, np.nan, np.float32), dtype)


def positions_of(states: HiddenStates) -> NDArray[np.int32]:
    return states.positions.astype(np.int32)


def tokens_of(states: HiddenStates) -> NDArray[np.int32]:
    if states.token_ids is None:
        raise InternalError("rows came without their tokens")
    return states.token_ids
