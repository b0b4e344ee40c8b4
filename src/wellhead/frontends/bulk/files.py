"""Files that are there whole or not at all, what is known of them, and the points at which a test may kill the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

from wellhead.errors import InvalidConfig, OutputFileError, WellheadError

#: ``group``: some rows of a part are in its unfinished file. ``data``: a part's files have their names, nothing says so yet.
#: ``commit``: the manifest has the part. ``merged``: the single file has its name, its manifest is missing.
#: ``finished``: everything is committed, working files are still there.
Point = Literal["group", "data", "commit", "merged", "finished"]
Reach = Callable[[Point], None]


def nowhere(point: Point) -> None:
    """Passes every point; tests put something deadlier in its place."""
    del point


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A finished file. ``path``: relative to the folder of its manifest; ``sha256``: in hexadecimal."""

    path: str
    bytes: int
    sha256: str

    @staticmethod
    def of(path: Path, root: Path) -> FileFacts:
        return FileFacts(path.relative_to(root).as_posix(), path.stat().st_size, sha256(path))

    @staticmethod
    def from_dict(record: dict[str, Any]) -> FileFacts:
        return FileFacts(str(record["path"]), int(record["bytes"]), str(record["sha256"]))

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}

    def fault(self, root: Path) -> str | None:
        """What is wrong with the file now; None if it is as it was."""
        path = root / self.path
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return f"{path} is missing"
        if size != self.bytes:
            return f"{path} has {size:,} bytes, not {self.bytes:,}"
        return None if sha256(path) == self.sha256 else f"{path} has other bytes than were written (sha256)"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part_of(path: Path) -> Path:
    """Where a file lies until it is whole: hidden, so that nobody who reads the folder takes it for data."""
    return path.with_name(f".{path.name}.part")


def publish(path: Path) -> None:
    """Give an unfinished file its name, once its bytes are on the disk."""
    part = part_of(path)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names survive a power cut only when their folder has been synced too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


@contextlib.contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turns what the system says about an output into ``OutputFileError``."""
    try:
        yield
    except WellheadError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else (error.strerror or str(error))
        raise OutputFileError(f"{what}: {reason}") from error


class Lock:
    """Held while a process writes an output; gone with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InvalidConfig(f"{self._path.parent}: another process is writing it", param="output") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            remove(self._path)
            self._file.close()
