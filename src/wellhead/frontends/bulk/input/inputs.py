"""All input files as one sequence of rows, numbered from 0, readable from any row on."""

from __future__ import annotations

import functools
import glob
import hashlib
import itertools
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from wellhead.errors import InputFileError, InvalidConfig
from wellhead.frontends.bulk.files import sha256
from wellhead.frontends.bulk.input import tables
from wellhead.frontends.bulk.input.carry import Carried, Carry, CarryType, Found
from wellhead.frontends.bulk.input.readers import STDIN, TEXT_KINDS, Record, count, kind_of, records
from wellhead.frontends.bulk.input.unify import plain
from wellhead.frontends.bulk.input.values import text_of

_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)
#: Rows that are looked at to find the types of carried columns where the file has none.
PROBE = 1000


_TABLES = ("parquet", "arrow")
NOTHING = Carried()


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: its number over all files, its id, its values; or the error that stands in its place.

    ``carried``: values of the carried columns, Arrow arrays in the types of ``Input.carries``.
    ``chain``: a digest of this row and all before it, kept for stdin only, which cannot be read twice.
    """

    number: int
    id: str
    values: Mapping[str, Any]
    carried: Carried = NOTHING
    error: InputFileError | None = None
    chain: str | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was surveyed. ``rows`` is -1 for stdin, of which nothing is known beforehand."""

    path: Path
    kind: str
    bytes: int = -1
    mtime_ns: int = -1
    sha256: str = ""
    rows: int = -1

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.path.name, "kind": self.kind, "bytes": self.bytes, "mtime_ns": self.mtime_ns, "sha256": self.sha256,
            "rows": self.rows,
        }  # fmt: skip


def expand(patterns: tuple[str, ...], kind: str | None) -> list[InputFile]:
    """Paths, globs (sorted), saved ``datasets`` folders and ``-`` -> files, not surveyed yet. Raises ``InputFileError``."""
    files: list[InputFile] = []
    for pattern in patterns:
        if pattern == "-":
            if kind not in TEXT_KINDS:
                raise InvalidConfig(f"--input - needs --input-format {', '.join(TEXT_KINDS)}", param="input_format")
            files.append(InputFile(STDIN, kind))
            continue
        for path in _paths(pattern):
            if path.is_dir():
                files += [InputFile(file, "arrow") for file in tables.dataset_files(path)]
            else:
                files.append(InputFile(path, kind or kind_of(path)))
    if any(file.path == STDIN for file in files) and len(files) > 1:
        raise InvalidConfig("--input - goes alone", param="input")
    return files


def _paths(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise InputFileError(f"{pattern}: no such file")
    return [Path(name) for name in found]


class Input:
    """The rows of some files, with the columns that a job needs."""

    def __init__(self, files: list[InputFile], text_column: str, columns: list[str], id_column: str | None) -> None:
        self.files = files
        self._text_column, self._id_column = text_column, id_column
        lines = next((file.path for file in files if file.kind == "txt"), None)
        if lines is not None and (id_column is not None or text_column != "text"):
            raise InputFileError(f"{lines}: lines of text have no columns (--id-column, --text-column)")
        self._needed = columns
        self._columns = list(dict.fromkeys([*columns, *([id_column] if id_column is not None else [])]))
        self._carried: list[str] = []
        self.carries: tuple[CarryType, ...] = ()

    @property
    def from_stdin(self) -> bool:
        return self.files[0].path == STDIN

    @property
    def total(self) -> int | None:
        """Rows of all files; None for stdin."""
        return None if self.from_stdin else sum(file.rows for file in self.files)

    def survey(self, known: list[dict[str, Any]]) -> None:
        """Size, content hash and rows of every file. ``known``: what an earlier run found, trusted where size and time agree."""
        if self.from_stdin:
            return
        self.files = [
            self._surveyed(file, known[i] if len(known) == len(self.files) else {}) for i, file in enumerate(self.files)
        ]

    @staticmethod
    def _surveyed(file: InputFile, known: dict[str, Any]) -> InputFile:
        try:
            facts = file.path.stat()
            same = (known.get("bytes"), known.get("mtime_ns"), known.get("kind")) == (facts.st_size, facts.st_mtime_ns, file.kind)
            digest = known["sha256"] if same else sha256(file.path)
            rows = known["rows"] if same else count(file.path, file.kind)
        except _BROKEN as error:
            raise InputFileError(f"{file.path}: {error}") from None
        return InputFile(file.path, file.kind, facts.st_size, facts.st_mtime_ns, digest, rows)

    def settle_carries(self, carries: tuple[Carry, ...]) -> None:
        """Find the type of every carried column, over all files: as given, as tables have it, or from the first rows of lines.

        Raises ``InputFileError`` if a file lacks a column that is needed, or no type holds a column of all files.
        """
        columns = [carry.name for carry in carries]
        schemas = {file.path: tables.schema(file.path, file.kind) for file in self.files if file.kind in _TABLES}
        for path, schema in schemas.items():
            tables.check(path, [*self._columns, *columns], schema.names)
        for file in self.files:
            if file.kind in ("csv", "tsv") and not self.from_stdin:
                next(records(file.path, file.kind, self._text_column, [*self._columns, *columns]), None)
        if not columns:
            return
        probes = {} if self.from_stdin else {file.path: self._probe(file) for file in self.files if file.kind == "jsonl"}
        self.carries = tuple(
            CarryType.settled(
                carry,
                [Found(path, plain(schema.field(carry.name).type)) for path, schema in schemas.items()],
                [Found.of_values(path, [r.get(carry.name) for r in probe]) for path, probe in probes.items()],
                functools.partial(self._fits, carry.name),
            )
            for carry in carries
        )
        self._carried = columns

    def _fits(self, column: str, found: Found, target: Any) -> bool:
        kind = next(file.kind for file in self.files if file.path == found.path)
        return tables.fits(found.path, kind, column, target)

    def _probe(self, file: InputFile) -> list[dict[str, Any]]:
        first = itertools.islice(records(file.path, file.kind, self._text_column, []), PROBE)
        return [record for record in first if isinstance(record, dict)]

    def rows(self, start: int, stop: int | None) -> Iterator[Row]:
        """Rows ``start .. stop - 1`` (to the end, if ``stop`` is None). Stdin is read from its beginning, and only once.

        Raises ``InputFileError`` if a file cannot be read any further.
        """
        number = 0 if self.from_stdin else start
        chain = "" if self.from_stdin else None
        for record in self._records(start):
            if stop is not None and number >= stop:
                return
            if chain is not None:
                chain = _link(chain, record, self._read)
            yield self._row(number, record, chain)
            number += 1

    @property
    def _read(self) -> list[str]:
        """Columns that are read of text files."""
        return list(dict.fromkeys([*self._columns, *self._carried]))

    def _records(self, start: int) -> Iterator[Record | tables.TableRow]:
        for file in self.files:
            if 0 <= file.rows <= start:
                start -= file.rows
                continue
            skip = 0 if self.from_stdin else start
            try:
                if file.kind in _TABLES:
                    yield from tables.rows(file.path, file.kind, self._columns, self.carries, skip)
                else:
                    yield from records(file.path, file.kind, self._text_column, self._read, skip)
            except _BROKEN as error:
                raise InputFileError(f"{file.path}: {error}") from None
            start = 0

    def _row(self, number: int, record: Record | tables.TableRow, chain: str | None) -> Row:
        name = str(number)
        if isinstance(record, InputFileError):
            return Row(number, name, {}, error=record, chain=chain)
        values = record.values if isinstance(record, tables.TableRow) else record
        try:
            if self._id_column is not None:
                name = _name(values, self._id_column)
            missing = next((c for c in self._needed if c not in values), None)
            if missing is not None:
                raise InputFileError(f"no field {missing!r}")
            needed = {c: values[c] for c in self._needed}
            wrong = next((value for value in needed.values() if isinstance(value, InputFileError)), None)
            if wrong is not None:
                raise wrong
            carried = record.carried if isinstance(record, tables.TableRow) else self._conformed(record)
            if isinstance(carried, InputFileError):
                raise carried
        except InputFileError as error:
            return Row(number, name, {}, error=error, chain=chain)
        return Row(number, name, needed, carried, chain=chain)

    def _conformed(self, record: dict[str, Any]) -> Carried:
        """A text file's carried values, in Arrow."""
        if not self.carries:
            return NOTHING
        found = [carry.conform(record.get(carry.name)) for carry in self.carries]
        arrays = tuple(pa.array([value], carry.type) for value, carry in zip(found, self.carries, strict=True))
        return Carried(arrays, 0, sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in found))


def _name(record: dict[str, Any], column: str) -> str:
    if record.get(column) is None:
        raise InputFileError(f"no {column!r} for an id")
    value = record[column]
    if isinstance(value, InputFileError):
        raise value
    name = text_of(value, column) if isinstance(value, pa.Scalar) else str(value)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InputFileError(f"{column!r} is not valid Unicode") from None
    return name


def _link(chain: str, record: Record | tables.TableRow, columns: list[str]) -> str:
    told = str(record) if not isinstance(record, dict) else json.dumps([record.get(c) for c in columns], default=repr)
    return hashlib.sha256((chain + told).encode("utf-8", "surrogatepass")).hexdigest()
