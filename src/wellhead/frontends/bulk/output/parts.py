"""Groups of rows -> the files of one part: Parquet, safetensors with a Parquet of the other columns beside it, or ``.npy``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wellhead.encoding import npy, safetensors
from wellhead.frontends.bulk.files import part_of, publish, remove
from wellhead.frontends.bulk.options import Format
from wellhead.frontends.bulk.output.schema import Group, Schema
from wellhead.types import STORAGE, DType

_NPY_HEADER = 128


class PartFile(Protocol):
    """Takes groups in order. ``paths``: the files' names, under which they are only after ``close``."""

    paths: tuple[Path, ...]

    def add(self, group: Group) -> None: ...

    def close(self) -> None:
        """Finish the files and give them their names."""
        ...

    def discard(self) -> None:
        """Leave nothing behind."""
        ...


def open_part(folder: Path, name: str, kind: Format, schema: Schema) -> PartFile:
    """The files of a part that begins. Leftovers under the same names are written over."""
    if kind == "parquet":
        return ParquetPart(folder / f"{name}.parquet", schema)
    if kind == "npy":
        return NpyPart(folder / f"{name}.npy", schema.dtype, schema.hidden_size)
    return SafetensorsPart(folder, name, schema)


class ParquetFile:
    """A Parquet file that grows by row groups. Vectors are compressed and have no statistics."""

    def __init__(self, path: Path, fields: list[pa.Field], metadata: dict[str, str], plain: list[str]) -> None:
        self.schema = pa.schema(fields, metadata=metadata)
        self._writer = pq.ParquetWriter(
            part_of(path), self.schema, compression="zstd", use_dictionary=plain, write_statistics=plain or False
        )

    def add(self, columns: list[pa.Array]) -> None:
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema), row_group_size=max(1, len(columns[0])))

    def close(self) -> None:
        self._writer.close()


class ParquetPart:
    """All columns in one file. bfloat16 is stored as its 16 bits (uint16); the column's metadata says so."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.paths: tuple[Path, ...] = (path,)
        self._schema = schema
        facts = [*schema.facts(), *schema.labels()]
        self._file = ParquetFile(path, [*facts, *schema.vector_fields()], schema.metadata, [f.name for f in facts])

    def add(self, group: Group) -> None:
        self._file.add([*group.facts(), *group.labels(), *(self._vectors(group, i) for i in range(len(self._schema.vectors)))])

    def _vectors(self, group: Group, index: int) -> pa.Array:
        column, kind = self._schema.vectors[index], self._schema.vector_fields()[index].type
        flat = pa.array(group.stacked(column).reshape(-1), pa.from_numpy_dtype(STORAGE[self._schema.dtype]))
        if not self._schema.full:
            none = group.nothing(column)
            return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=pa.array(none) if none.any() else None)
        offsets = np.zeros(len(group) + 1, np.int32)
        np.cumsum(group.lengths(column), out=offsets[1:])
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.FixedSizeListArray.from_arrays(flat, type=kind.value_type), type=kind
        )

    def close(self) -> None:
        self._file.close()
        publish(self.paths[0])

    def discard(self) -> None:
        remove(part_of(self.paths[0]))
        self._file.close()


class SafetensorsPart:
    """Tensors under the names of the vector columns, ``[n, H]``; in full mode ``[all rows, H]`` and ``NAME.offsets`` ``[n + 1]``.

    ``positions`` (I64) and, if wanted, ``token_ids`` (I32) are those of all texts one after another, with
    ``position_offsets`` ``[n + 1]``. The other columns are in ``NAME.rows.parquet``, row by row. The format wants all shapes
    at its head, so tensors wait in memory until the part is full.
    """

    def __init__(self, folder: Path, name: str, schema: Schema) -> None:
        self.paths: tuple[Path, ...] = (folder / f"{name}.safetensors", folder / f"{name}.rows.parquet")
        self._schema = schema
        facts = schema.facts()
        self._facts = ParquetFile(self.paths[1], facts, schema.metadata, [f.name for f in facts])
        self._tensors: dict[str, list[NDArray[Any]]] = {column.name: [] for column in schema.vectors}
        self._lengths: dict[str, list[int]] = {column.name: [] for column in schema.vectors}
        self._labels: dict[str, list[NDArray[np.int32]]] = {f.name: [] for f in schema.labels()}

    def add(self, group: Group) -> None:
        self._facts.add(group.facts())
        for names, labels in ((self._schema.positions, group.positions), (self._schema.row_tokens, group.row_tokens)):
            for template, name in enumerate(names):
                self._labels[name] += [label[template] for label in labels]
        for column in self._schema.vectors:
            self._tensors[column.name].append(group.stacked(column))
            self._lengths[column.name] += group.lengths(column)

    def close(self) -> None:
        self._facts.close()
        with part_of(self.paths[0]).open("wb") as file:
            self._write(file)
        for path in self.paths:
            publish(path)

    def _write(self, file: IO[bytes]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **self._schema.metadata}}
        blocks: list[NDArray[Any]] = []
        end = 0
        for name, kind, shape, arrays in self._layout():
            begin, end = end, end + sum(a.nbytes for a in arrays)
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
            blocks += arrays
        file.write(safetensors.framed(json.dumps(header).encode()))
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)

    def _layout(self) -> list[tuple[str, str, list[int], list[NDArray[Any]]]]:
        """Name, dtype, shape and pieces of each tensor; the widest numbers first, so that everything is aligned."""
        schema, whole = self._schema, dict[str, NDArray[Any]]()
        if schema.full:
            whole |= {f"{name}.offsets": _ends(lengths) for name, lengths in self._lengths.items()}
        for name in schema.positions:
            whole[name.replace("positions", "position_offsets")] = _ends(map(len, self._labels[name]))
            whole[name] = _joined(self._labels[name], np.int64)
        whole |= {name: _joined(self._labels[name], np.int32) for name in schema.row_tokens}
        found = [(name, f"I{8 * a.itemsize}", [len(a)], [a]) for name, a in whole.items()]
        kind, width = safetensors.DTYPE_NAME[schema.dtype], schema.hidden_size
        return found + [(name, kind, [sum(map(len, p)), width], p) for name, p in self._tensors.items()]

    def discard(self) -> None:
        for path in self.paths:
            remove(part_of(path))
        self._facts.close()


def _ends(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where each of several pieces begins, and the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def _joined(arrays: list[NDArray[np.int32]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype)


class NpyPart:
    """One ``[rows, H]`` array. The header has a fixed length and gets its row count at the end."""

    def __init__(self, path: Path, dtype: DType, hidden_size: int) -> None:
        self.paths: tuple[Path, ...] = (path,)
        self._dtype, self._rows, self._hidden_size = dtype, 0, hidden_size
        self._file = part_of(path).open("wb")
        self._file.write(bytes(_NPY_HEADER))

    def add(self, group: Group) -> None:
        self.add_rows(group.stacked(group.schema.vectors[0]))

    def add_rows(self, rows: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(rows).data)
        self._rows += len(rows)

    def close(self) -> None:
        shape = (self._rows, self._hidden_size)
        self._file.seek(0)
        self._file.write(npy.header(self._dtype, shape, _NPY_HEADER))
        self._file.close()
        publish(self.paths[0])

    def discard(self) -> None:
        remove(part_of(self.paths[0]))
        self._file.close()
