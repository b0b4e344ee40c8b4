"""One input file -> records, one per row, from any row on. A bad row is an error at its place, never a shift."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from wellhead.errors import InputFileError
from wellhead.frontends.bulk.input import tables
from wellhead.frontends.bulk.input.values import not_text

#: Column values by name (only the columns that were asked for are sure to be there), each of which may be what is wrong with
#: it; or what is wrong with the row.
Record = dict[str, Any] | InputFileError

KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "txt", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
TEXT_KINDS = ("jsonl", "txt", "csv", "tsv")
_COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: Python's csv refuses longer fields than its module-wide limit, which is 128 KiB unless somebody asks for more.
_CSV_FIELD = 1 << 30
STDIN = Path("-")


def kind_of(path: Path) -> str:
    """The kind by the suffix, a compression's aside. Raises ``InputFileError``."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = KINDS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        has = suffixes[-1] if suffixes else "a file without a suffix"
        raise InputFileError(f"{path}: cannot read {has}; use {', '.join(KINDS)} (also .gz, .bz2, .xz) or --input-format")
    return kind


def records(path: Path, kind: str, text_column: str, columns: list[str], skip: int = 0) -> Iterator[Record]:
    """Records of a text file from row ``skip`` on, in bounded memory. A line ends at ``\\n`` or ``\\r\\n`` and nowhere else.

    Raises ``InputFileError`` if the file cannot be read at all, or has no such column.
    """
    with opened(path) as file:
        yield from _text_records(file, path, kind, text_column, columns, skip)


def _text_records(file: IO[bytes], path: Path, kind: str, text_column: str, columns: list[str], skip: int) -> Iterator[Record]:
    if kind == "jsonl":
        yield from _jsonl(file, path, text_column, skip)
    elif kind == "txt":
        for at, raw in itertools.islice(enumerate(file), skip, None):
            line = _decode(raw, path, at)
            yield {text_column: line} if isinstance(line, str) else line
    else:
        yield from _csv(file, path, "\t" if kind == "tsv" else ",", columns, skip)


def count(path: Path, kind: str) -> int:
    """How many records a file has."""
    if kind in ("parquet", "arrow"):
        return tables.count(path, kind)
    with opened(path) as file:
        if kind == "txt":
            return sum(1 for _ in file)
        if kind == "jsonl":
            return sum(1 for line in file if not line.isspace())
        return sum(1 for _ in _csv(file, path, "\t" if kind == "tsv" else ",", [], 0))


def opened(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed. Raises ``InputFileError``."""
    if path == STDIN:
        return sys.stdin.buffer
    try:
        opener: Any = _COMPRESSED.get(path.suffix.lower())
        file: IO[bytes] = path.open("rb") if opener is None else opener(path, "rb")
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror or error}") from None
    return file


def _line(raw: bytes) -> bytes:
    """A line without its end."""
    return raw[:-1].removesuffix(b"\r") if raw.endswith(b"\n") else raw


def _decode(raw: bytes, path: Path, at: int) -> str | InputFileError:
    try:
        return _line(raw).decode("utf-8-sig" if at == 0 else "utf-8")
    except UnicodeDecodeError as error:
        return InputFileError(f"{path}:{at + 1}: not UTF-8 (byte {error.start} of the line)")


def _jsonl(file: IO[bytes], path: Path, text_column: str, skip: int) -> Iterator[Record]:
    filled = ((at, raw) for at, raw in enumerate(file) if not raw.isspace())
    for at, raw in itertools.islice(filled, skip, None):
        line = _decode(raw, path, at)
        yield _json_record(line, path, at, text_column) if isinstance(line, str) else line


def _json_record(line: str, path: Path, at: int, text_column: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return InputFileError(f"{path}:{at + 1}: not JSON ({error})")
    if isinstance(record, str):
        return {text_column: record}
    return record if isinstance(record, dict) else InputFileError(f"{path}:{at + 1}: neither a JSON object nor a string")


def _csv(file: IO[bytes], path: Path, delimiter: str, columns: list[str], skip: int) -> Iterator[Record]:
    """Every value is a string: CSV has no types, and a guess from the first rows would fail at a later one."""
    csv.field_size_limit(_CSV_FIELD)
    # What is not UTF-8 comes through as halves of surrogate pairs, and is refused with the row that has it.
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    rows = _csv_rows(reader, path)
    names = next(rows, None)
    if isinstance(names, InputFileError):
        raise names
    tables.check(path, columns, names or [])
    places = [(name, (names or []).index(name)) for name in columns]
    for row in itertools.islice(rows, skip, None):
        if isinstance(row, InputFileError):
            yield row
        elif len(row) != len(names or []):
            yield InputFileError(f"{path}:{reader.line_num}: {len(row)} fields; the header has {len(names or [])}")
        else:
            yield {name: _cell(name, row[place]) for name, place in places}


def _cell(name: str, text: str) -> str | InputFileError:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return not_text(name)
    return text


def _csv_rows(reader: Any, path: Path) -> Iterator[list[str] | InputFileError]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield InputFileError(f"{path}:{reader.line_num}: not CSV ({error})")
        else:
            if row:
                yield row
