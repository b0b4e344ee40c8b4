"""Rows of hidden states -> one file, row by row, which appears under its name only when it is whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wellhead.errors import InvalidConfig
from wellhead.types import STORAGE, DType, HiddenStates, narrow

#: A row group is written when its vectors reach this many bytes.
GROUP_BYTES = 32 << 20


class Writer(Protocol):
    """Takes rows in order."""

    def add(self, name: str, states: HiddenStates) -> None: ...

    def close(self) -> None:
        """Finish the file and give it its name."""
        ...

    def discard(self) -> None:
        """Leave nothing behind."""
        ...


def open_writer(path: Path, mode: str, layers: list[int] | None, dtype: DType, metadata: dict[str, str]) -> Writer:
    """A writer by the suffix of ``path``: ``.parquet``, or ``.npy`` for one vector per text."""
    kind = path.suffix.lower()
    if not path.parent.is_dir():
        raise InvalidConfig(f"--output: there is no folder {path.parent}", param="output")
    if kind == ".parquet":
        return ParquetWriter(path, mode == "full", layers, dtype, metadata)
    if kind != ".npy":
        raise InvalidConfig(
            f"--output {path}: cannot write {kind or 'a file without a suffix'}; use .parquet or .npy", param="output"
        )
    if mode == "full" or layers is not None or dtype == "bfloat16":
        raise InvalidConfig(
            "--output .npy holds one float32 or float16 vector per text; use .parquet for the rest", param="output"
        )
    return NpyWriter(path, dtype)


def cast(states: HiddenStates, layer: int | None, dtype: DType) -> NDArray[Any]:
    """One layer in the storage of ``dtype``."""
    raw = states.raw(layer)
    return raw if states.dtype == dtype else narrow(states.numpy(layer), dtype)


class ParquetWriter:
    """Columns ``id`` and ``vector`` (or ``layer_<i>`` for layers by number): fixed-size lists; in full mode lists of them.

    bfloat16 is stored as its 16 bits (uint16); the column's metadata says so.
    """

    def __init__(self, path: Path, full: bool, layers: list[int] | None, dtype: DType, metadata: dict[str, str]) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        self._full, self._dtype, self._metadata = full, dtype, metadata
        self._columns: dict[str, int | None] = {"vector": None} if layers is None else {f"layer_{la}": la for la in layers}
        self._names: list[str] = []
        self._rows: dict[str, list[NDArray[Any]]] = {name: [] for name in self._columns}
        self._bytes = 0
        self._writer: Any = None

    def add(self, name: str, states: HiddenStates) -> None:
        self._names.append(name)
        for column, layer in self._columns.items():
            rows = cast(states, layer, self._dtype)
            self._rows[column].append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._names:
            return
        columns = [pa.array(self._names, pa.string()), *(self._array(self._rows[c]) for c in self._columns)]
        if self._writer is None:
            kind = {b"dtype": self._dtype.encode()}
            fields = [pa.field("id", pa.string(), nullable=False)]
            fields += [
                pa.field(c, a.type, nullable=False, metadata=kind) for c, a in zip(self._columns, columns[1:], strict=True)
            ]
            self._writer = pq.ParquetWriter(
                self._part, pa.schema(fields, metadata=self._metadata), compression="zstd", use_dictionary=["id"]
            )
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._writer.schema))
        self._names, self._bytes = [], 0
        self._rows = {name: [] for name in self._columns}

    def _array(self, rows: list[NDArray[Any]]) -> Any:
        flat = np.concatenate([r.reshape(-1) for r in rows])
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.from_numpy_dtype(STORAGE[self._dtype])), rows[0].shape[-1])
        if not self._full:
            return vectors
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([len(r) for r in rows], out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), vectors)

    def close(self) -> None:
        self._flush()
        if self._writer is None:
            empty = pa.schema([pa.field("id", pa.string(), nullable=False)], metadata=self._metadata)
            self._writer = pq.ParquetWriter(self._part, empty)
        self._writer.close()
        os.replace(self._part, self._path)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._part.unlink(missing_ok=True)


class NpyWriter:
    """One ``[rows, H]`` array. The header has a fixed length and gets its row count at the end."""

    HEADER = 128

    def __init__(self, path: Path, dtype: DType) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        self._dtype = dtype
        self._file = self._part.open("wb")
        self._file.write(bytes(self.HEADER))
        self._shape = (0, 0)

    def add(self, name: str, states: HiddenStates) -> None:
        del name
        row = cast(states, None, self._dtype)
        self._file.write(np.ascontiguousarray(row).data)
        self._shape = (self._shape[0] + 1, len(row))

    def close(self) -> None:
        text = f"{{'descr': '{STORAGE[self._dtype].str}', 'fortran_order': False, 'shape': {self._shape}, }}"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + (self.HEADER - 10).to_bytes(2, "little"))
        self._file.write(text.encode().ljust(self.HEADER - 11) + b"\n")
        self._file.close()
        os.replace(self._part, self._path)

    def discard(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)
