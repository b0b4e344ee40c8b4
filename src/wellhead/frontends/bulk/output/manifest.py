"""The manifest: what a job is, and which parts of it are on the disk. JSON lines, of which each one is a commit.

::

    {"wellhead": 1, "options": {...}, "input": [...], "model": {...}, "engine": {...}, "columns": [...], "again": {...}}
    {"part": 0, "rows": [0, 5000], "vectors": 4998, "failed": 2, "tokens": 81234, "files": [{"path": ...,
     "bytes": ..., "sha256": ...}]}
    {"part": 1, ...}
    {"complete": true, "rows": [0, 12000], "vectors": 11998, ..., "files": [...]}

A line that broke off at the end of the file was never committed. There are no times in it: two runs of one job write the
same bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellhead.errors import OutputFileError
from wellhead.frontends.bulk.files import FileFacts, part_of, publish

VERSION = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``start .. stop - 1`` of the input, and the files that hold them. ``number`` is -1 for a whole job.

    ``chain``: digest of all rows up to ``stop``, for stdin. ``tokens``: 0 where a server has the tokenizer.
    """

    number: int
    start: int
    stop: int
    vectors: int
    failed: int
    tokens: int
    files: tuple[FileFacts, ...] = ()
    chain: str | None = None

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Part:
        start, stop = record["rows"]
        files = tuple(FileFacts.from_dict(f) for f in record["files"])
        counts = [int(record[name]) for name in ("vectors", "failed", "tokens")]
        return Part(
            int(record.get("part", -1)), int(start), int(stop), counts[0], counts[1], counts[2], files, record.get("chain")
        )

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {"part": self.number} if self.number >= 0 else {"complete": True}
        record |= {"rows": [self.start, self.stop], "vectors": self.vectors, "failed": self.failed, "tokens": self.tokens}
        record["files"] = [f.to_dict() for f in self.files]
        return record if self.chain is None else {**record, "chain": self.chain}


class Manifest:
    """The header, and committed parts by number. ``whole``: the last line, once all is there."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.header = header
        self.parts: dict[int, Part] = {}
        self.whole: Part | None = None
        self._bytes = 0

    @staticmethod
    def load(path: Path) -> Manifest | None:
        """What is on the disk; None if there is no manifest. Raises ``OutputFileError`` if it is damaged."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        *lines, _torn = data.split(b"\n")
        records = [_parse(path, number, line) for number, line in enumerate(lines)]
        if not records or records[0].get("wellhead") != VERSION:
            raise OutputFileError(f"{path}: not a manifest of this version of wellhead; use --overwrite to begin anew")
        manifest = Manifest(path, records[0])
        manifest._bytes = sum(len(line) + 1 for line in lines)
        for number, record in enumerate(records[1:], 1):
            try:
                part = Part.from_dict(record)
            except (KeyError, TypeError, ValueError):
                raise OutputFileError(f"{path}:{number + 1}: damaged; use --overwrite to begin anew") from None
            if part.number >= 0:
                manifest.parts[part.number] = part
            else:
                manifest.whole = part
        return manifest

    def ordered(self) -> list[Part]:
        return [self.parts[number] for number in sorted(self.parts)]

    def total(self) -> Part:
        """The parts, summed, without files."""
        parts = self.ordered()
        last = parts[-1]
        sums = {name: sum(getattr(p, name) for p in parts) for name in ("vectors", "failed", "tokens")}
        return Part(-1, parts[0].start, last.stop, **sums, chain=last.chain)

    def commit(self, part: Part) -> None:
        """Append a part. It is there when this returns, and not at all if the process dies before."""
        self.parts[part.number] = part
        line = _line(part.to_dict())
        with self.path.open("r+b") as file:
            file.truncate(self._bytes)  # of a line that broke off
            file.seek(self._bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._bytes += len(line)

    def write(self) -> None:
        """Write all of it anew, in order; appears by rename."""
        records = [self.header, *(p.to_dict() for p in self.ordered()), *([self.whole.to_dict()] if self.whole else [])]
        data = b"".join(_line(record) for record in records)
        part_of(self.path).write_bytes(data)
        publish(self.path)
        self._bytes = len(data)

    def drop(self, numbers: list[int]) -> None:
        """Forget parts that are to be computed again. Their row ranges are the caller's to remember."""
        if numbers or self.whole is not None:
            self.whole = None
            for number in numbers:
                del self.parts[number]
            self.write()


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=True).encode() + b"\n"


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise OutputFileError(f"{path}:{number + 1}: damaged; use --overwrite to begin anew")
    return record
