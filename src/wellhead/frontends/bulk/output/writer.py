"""Parts onto the disk, one after another, on a thread of its own: the engine is fed while files are written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from wellhead.frontends.bulk.files import FileFacts, Reach, part_of, publish, remove, writing
from wellhead.frontends.bulk.options import Format
from wellhead.frontends.bulk.output.layout import Layout
from wellhead.frontends.bulk.output.manifest import Manifest, Part
from wellhead.frontends.bulk.output.parts import PartFile, open_part
from wellhead.frontends.bulk.output.schema import Group, Schema

FAILED = pa.schema([(name, pa.int64() if name == "row" else pa.string()) for name in ("row", "id", "code", "message")])


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that has no vector, and why."""

    row: int
    id: str
    code: str
    message: str


@dataclass(slots=True)
class Tally:
    """What a part holds so far. ``stop``: the row after its last one."""

    number: int
    start: int
    stop: int = 0
    vectors: int = 0
    tokens: int = 0
    bytes: int = 0
    chain: str | None = None
    failed: list[Failed] = field(default_factory=list)

    def part(self) -> Part:
        return Part(self.number, self.start, self.stop, self.vectors, len(self.failed), self.tokens, chain=self.chain)


class PartWriter:
    """Writes groups into the part that is open, and commits it. Used from one thread at a time."""

    def __init__(self, layout: Layout, kind: Format, schema: Schema, manifest: Manifest, reach: Reach) -> None:
        self._layout, self._kind, self._schema, self._manifest, self._reach = layout, kind, schema, manifest, reach
        self._file: PartFile | None = None

    def add(self, number: int, group: Group) -> None:
        with writing(self._layout.root):
            self._open(number).add(group)
            self._reach("group")

    def finish(self, tally: Tally) -> None:
        """Close the part's files, then commit them."""
        with writing(self._layout.root):
            file = self._open(tally.number)
            file.close()
            self._file = None
            paths = list(file.paths)
            failed = self._layout.failed / f"{self._layout.part(tally.number)}.parquet"
            if tally.failed:
                write_failed(failed, [pa.Table.from_pylist([_record(f) for f in tally.failed], FAILED)])
                paths.append(failed)
            else:
                remove(failed)
            self._reach("data")
            facts = tuple(FileFacts.of(path, self._layout.root) for path in paths)
            self._manifest.commit(replace(tally.part(), files=facts))
            self._reach("commit")

    def _open(self, number: int) -> PartFile:
        if self._file is None:
            self._file = open_part(self._layout.data, self._layout.part(number), self._kind, self._schema)
        return self._file

    def discard(self) -> None:
        """Drop the part that is open."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # closing writes too, and the disk may be full
                file.discard()


class Behind:
    """Runs one task at a time behind the caller's back. A task's error is raised where the next one is handed over."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "wellhead-writer")
        self._task: Future[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run(self, task: Callable[..., None], *args: Any) -> None:
        self.wait()
        self._task = self._pool.submit(task, *args)

    def forget(self) -> None:
        """Let every task that was handed over end, however it does. (A signal may have come in the middle of ``run``.)"""
        self._pool.submit(int).result()
        self._task = None

    def wait(self) -> None:
        """Until the last task is done."""
        if self._task is not None:
            self._task.result()
        self._task = None


def _record(failed: Failed) -> dict[str, Any]:
    message = failed.message.encode("utf-8", "replace").decode()
    return {"row": failed.row, "id": failed.id, "code": failed.code, "message": message}


def write_failed(path: Path, tables: list[Any]) -> None:
    """Tables of rows that failed -> one Parquet file, by rename."""
    with pq.ParquetWriter(part_of(path), FAILED, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    publish(path)
