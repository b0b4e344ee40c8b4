"""All input files as one sequence of rows, numbered from 0, readable from any row on."""

from __future__ import annotations

import glob
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellhead.errors import InputFileError, InvalidConfig
from wellhead.frontends.bulk.files import sha256
from wellhead.frontends.bulk.input import tables
from wellhead.frontends.bulk.input.carry import Carry, CarryType
from wellhead.frontends.bulk.input.readers import STDIN, TEXT_KINDS, Record, count, kind_of, records

_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)
#: Rows that are looked at to find the types of carried columns where the file has none.
PROBE = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: its number over all files, its id, its values; or the error that stands in its place.

    ``carried``: values of the carried columns, in the types of ``Input.carries``.
    ``chain``: a digest of this row and all before it, kept for stdin only, which cannot be read twice.
    """

    number: int
    id: str
    values: Mapping[str, Any]
    carried: tuple[Any, ...] = ()
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
        """Find the type of every carried column: as given, as the file has it, or from the first rows. Raises InputFileError."""
        columns = [carry.name for carry in carries]
        if not columns:
            return
        first = self.files[0]
        if first.kind in ("parquet", "arrow"):
            schema = tables.schema(first.path, first.kind)
            tables.check(first.path, columns, schema.names)
            self.carries = tuple(CarryType.of_table(carry, schema.field(carry.name).type) for carry in carries)
        else:
            probe = [] if self.from_stdin or first.kind == "txt" else self._probe()
            self.carries = tuple(CarryType.of_values(carry, [r.get(carry.name) for r in probe]) for carry in carries)
        self._columns = list(dict.fromkeys([*self._columns, *columns]))

    def _probe(self) -> list[dict[str, Any]]:
        first = self.files[0]
        found = []
        for at, record in enumerate(records(first.path, first.kind, self._text_column, [])):
            if at == PROBE:
                break
            if isinstance(record, dict):
                found.append(record)
        return found

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
                chain = _link(chain, record, self._columns)
            yield self._row(number, record, chain)
            number += 1

    def _records(self, start: int) -> Iterator[Record]:
        for file in self.files:
            if 0 <= file.rows <= start:
                start -= file.rows
                continue
            skip = 0 if self.from_stdin else start
            try:
                yield from records(file.path, file.kind, self._text_column, self._columns, skip)
            except _BROKEN as error:
                raise InputFileError(f"{file.path}: {error}") from None
            start = 0

    def _row(self, number: int, record: Record, chain: str | None) -> Row:
        name = str(number)
        if isinstance(record, InputFileError):
            return Row(number, name, {}, error=record, chain=chain)
        try:
            if self._id_column is not None:
                name = _name(record, self._id_column)
            missing = next((c for c in self._needed if c not in record), None)
            if missing is not None:
                raise InputFileError(f"no field {missing!r}")
            carried = tuple(carry.conform(record.get(carry.name)) for carry in self.carries)
        except InputFileError as error:
            return Row(number, name, {}, error=error, chain=chain)
        return Row(number, name, {c: record[c] for c in self._needed}, carried, chain=chain)


def _name(record: dict[str, Any], column: str) -> str:
    if record.get(column) is None:
        raise InputFileError(f"no {column!r} for an id")
    name = str(record[column])
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InputFileError(f"{column!r} is not valid Unicode") from None
    return name


def _link(chain: str, record: Record, columns: list[str]) -> str:
    told = str(record) if isinstance(record, InputFileError) else json.dumps([record.get(c) for c in columns], default=repr)
    return hashlib.sha256((chain + told).encode("utf-8", "surrogatepass")).hexdigest()
