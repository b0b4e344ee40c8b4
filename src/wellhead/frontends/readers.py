"""Files of texts -> rows. Every row keeps its number, so that a bad one is an error at its place and not a shift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from wellhead.errors import InputFileError, WellheadError


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: its number from 0, its id, and its text, or the error that stands in its place."""

    number: int
    id: str
    text: str
    error: WellheadError | None = None


def read_rows(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    """Rows of a ``.jsonl``, ``.txt`` (one text a line), ``.csv`` or ``.parquet`` file, read in bounded memory.

    Raises ``InputFileError`` if the file is missing, of an unknown kind, or has no such column.
    """
    if not path.is_file():
        raise InputFileError(f"{path}: no such file")
    kind = path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        return _jsonl(path, text_column, id_column)
    if kind == ".txt":
        if id_column is not None or text_column != "text":
            raise InputFileError(f"{path}: lines of a .txt have no columns (--id-column, --text-column)")
        return _lines(path)
    if kind in (".csv", ".parquet"):
        return _table(path, kind, text_column, id_column)
    raise InputFileError(f"{path}: cannot read {kind or 'a file without a suffix'}; use .jsonl, .txt, .csv or .parquet")


def _decoded(path: Path) -> Iterator[tuple[int, str | InputFileError]]:
    """Lines without their end, each as text or as the error of being none."""
    with path.open("rb") as file:
        for number, raw in enumerate(file):
            try:
                yield number, raw.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                yield number, InputFileError(f"{path}:{number + 1}: not UTF-8 (byte {error.start} of the line)")


def _lines(path: Path) -> Iterator[Row]:
    for number, line in _decoded(path):
        yield _row(number, str(number), line)


def _jsonl(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    number = 0
    for at, line in _decoded(path):
        if isinstance(line, str) and not line.strip():
            continue
        yield _json_row(path, number, at, line, text_column, id_column)
        number += 1


def _json_row(path: Path, number: int, at: int, line: str | InputFileError, text_column: str, id_column: str | None) -> Row:
    if isinstance(line, InputFileError):
        return _row(number, str(number), line)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _row(number, str(number), InputFileError(f"{path}:{at + 1}: not JSON ({error})"))
    if isinstance(record, str):
        record = {text_column: record}
    if not isinstance(record, dict) or text_column not in record:
        return _row(number, str(number), InputFileError(f"{path}:{at + 1}: no field {text_column!r}"))
    if id_column is not None and id_column not in record:
        return _row(number, str(number), InputFileError(f"{path}:{at + 1}: no field {id_column!r}"))
    name = str(record[id_column]) if id_column is not None else str(number)
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        return _row(number, str(number), InputFileError(f"{path}:{at + 1}: {id_column!r} holds a lone surrogate"))
    text = record[text_column]
    if not isinstance(text, str):
        return _row(number, name, InputFileError(f"{path}:{at + 1}: {text_column!r} is not a string"))
    return _row(number, name, text)


def _row(number: int, name: str, text: str | InputFileError) -> Row:
    return Row(number, name, "", text) if isinstance(text, InputFileError) else Row(number, name, text)


def _table(path: Path, kind: str, text_column: str, id_column: str | None) -> Iterator[Row]:
    columns = [text_column, *([id_column] if id_column is not None else [])]
    try:
        source = pq.ParquetFile(path) if kind == ".parquet" else pa.csv.open_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputFileError(f"{path}: {error}") from None
    schema = source.schema_arrow if kind == ".parquet" else source.schema
    for name in columns:
        if name not in schema.names:
            raise InputFileError(f"{path}: no column {name!r}; there are {', '.join(schema.names)}")
    batches = source.iter_batches(batch_size=1024, columns=columns) if kind == ".parquet" else source
    return _table_rows(path, batches, text_column, id_column)


def _table_rows(path: Path, batches: Any, text_column: str, id_column: str | None) -> Iterator[Row]:
    number = 0
    try:
        for batch in batches:
            texts = batch.column(batch.schema.get_field_index(text_column)).to_pylist()
            ids = batch.column(batch.schema.get_field_index(id_column)).to_pylist() if id_column is not None else None
            for i, text in enumerate(texts):
                name = str(ids[i]) if ids is not None else str(number)
                bad = None if isinstance(text, str) else InputFileError(f"{path}: row {number}: {text_column!r} is not a string")
                yield Row(number, name, text if bad is None else "", bad)
                number += 1
    except pa.ArrowInvalid as error:
        raise InputFileError(f"{path}: after row {number}: {error}") from None
