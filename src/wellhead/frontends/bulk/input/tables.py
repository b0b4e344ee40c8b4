"""Parquet and Arrow files, and folders that Hugging Face ``datasets`` has saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wellhead.errors import InputFileError
from wellhead.frontends.bulk.input import values
from wellhead.frontends.bulk.input.carry import Carried, CarryType

#: Rows that are turned into Python objects at once.
BATCH = 1024


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table. ``values``: of the columns that prompts and ids are made of, or the error of one; ``carried``: of the
    others, in Arrow; or the first error among them."""

    values: dict[str, Any]
    carried: Carried | InputFileError


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputFileError):
            raise
        raise InputFileError(f"{path}: {error}") from None


def schema(path: Path, kind: str) -> pa.Schema:
    """Column names and types. Raises ``InputFileError``."""
    with _readable(path):
        if kind == "parquet":
            return pq.read_schema(path)
        return _open_arrow(path).schema


def count(path: Path, kind: str) -> int:
    with _readable(path):
        if kind == "parquet":
            return int(pq.read_metadata(path).num_rows)
        return sum(batch.num_rows for batch in _batches(path))


def rows(path: Path, kind: str, columns: list[str], carries: tuple[CarryType, ...], skip: int) -> Iterator[TableRow]:
    """Rows from ``skip`` on; what lies before it is read as little as the format allows."""
    wanted = list(dict.fromkeys([*columns, *(carry.name for carry in carries)]))
    with _readable(path):
        for batch in _parquet(path, wanted, skip) if kind == "parquet" else _arrow(path, wanted, skip):
            yield from _rows(batch, columns, carries)


def _rows(batch: Any, columns: list[str], carries: tuple[CarryType, ...]) -> Iterator[TableRow]:
    read = [values.read(batch.column(name), name) for name in columns]
    arrays, faults = [], dict[int, InputFileError]()
    for carry in carries:
        array, wrong = carry.column(batch.column(carry.name))
        arrays.append(array)
        faults = {**wrong, **faults}
    kept = tuple(arrays)
    sizes = sum((values.sizes(array) for array in kept), np.zeros(batch.num_rows, np.int64)).tolist()
    for at, found in enumerate(zip(*read, strict=True)):
        yield TableRow(dict(zip(columns, found, strict=True)), faults.get(at) or Carried(kept, at, sizes[at]))


def _parquet(path: Path, columns: list[str], skip: int) -> Iterator[Any]:
    """Batches from row ``skip`` on; row groups before it are not read."""
    file = pq.ParquetFile(path)
    check(path, columns, file.schema_arrow.names)
    groups = list(range(file.num_row_groups))
    while groups and skip >= file.metadata.row_group(groups[0]).num_rows:
        skip -= file.metadata.row_group(groups.pop(0)).num_rows
    for batch in file.iter_batches(batch_size=BATCH, row_groups=groups, columns=columns):
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


def _arrow(path: Path, columns: list[str], skip: int) -> Iterator[Any]:
    """Batches from row ``skip`` on of an IPC file or stream, memory-mapped."""
    for batch in _batches(path):
        check(path, columns, batch.schema.names)
        for at in range(skip, batch.num_rows, BATCH):
            yield batch.select(columns).slice(at, BATCH)
        skip = max(0, skip - batch.num_rows)


def fits(path: Path, kind: str, column: str, target: Any) -> bool:
    """Whether every value of a column is a value of another type."""
    with _readable(path):
        for batch in _parquet(path, [column], 0) if kind == "parquet" else _arrow(path, [column], 0):
            try:
                values.spelt_out(batch.column(column)).cast(target)
            except values.UNREADABLE:
                return False
    return True


def _batches(path: Path) -> Iterator[Any]:
    reader = _open_arrow(path)
    if isinstance(reader, pa.RecordBatchFileReader):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)


def _open_arrow(path: Path) -> Any:
    source = pa.memory_map(str(path))
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def check(path: Path, columns: list[str], names: list[str]) -> None:
    """Raise ``InputFileError`` unless every column is there, once."""
    for name in columns:
        if names.count(name) != 1:
            raise InputFileError(f"{path}: no column {name!r}, or more than one; there are {', '.join(names)}")


def dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that ``Dataset.save_to_disk`` wrote, in order. Raises ``InputFileError``."""
    if (folder / "dataset_dict.json").is_file():
        splits = _json(folder / "dataset_dict.json").get("splits")
        raise InputFileError(
            f"{folder} holds the splits {', '.join(map(str, splits or []))}; name one of them, as {folder}/SPLIT"
        )
    state = folder / "state.json"
    if not state.is_file():
        raise InputFileError(f"{folder} is a folder, but none that datasets has saved (no state.json); name the files in it")
    facts = _json(state)
    if facts.get("_indices_files"):
        raise InputFileError(f"{folder} keeps its rows' order apart (an indices mapping); save it again after flatten_indices()")
    try:
        return [folder / entry["filename"] for entry in facts["_data_files"]]
    except (KeyError, TypeError):
        raise InputFileError(f"{state} names no data files") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise InputFileError(f"{path} holds no JSON object")
    return value
