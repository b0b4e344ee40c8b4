"""GGUF headers: metadata and tensor table, read with every count held against the file's size.

The ``gguf`` package's own reader believes the counts in a file (and takes seconds over a large vocabulary), so the
header is read here; the package still dequantises. No torch and no gguf import: tokenizers are read through this too.
Layout: magic, version, two counts, then key/type/value for each entry, then name/shape/type/offset for each tensor,
padding, data; all little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellhead.errors import WeightsError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_STRING = 64 * 2**20
_MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One entry of the tensor table. ``shape`` is ``[out, in]`` (the file has it reversed); ``offset`` from the start
    of the file, in bytes; ``kind`` is ggml's number for the quantisation."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class GGUFFile:
    """A header in full: metadata as Python values (arrays as lists), tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    size: int


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file, version 2 or 3.

    Errors: WeightsError naming the file, for a torn file, a wrong magic, another version, big-endian files, counts
    or lengths that the file cannot hold, a key or a tensor that is there twice, and files in several parts.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()
    except (OSError, ValueError, struct.error, OverflowError) as error:
        raise WeightsError(f"{path} is not a whole GGUF file: {error}") from error


class _Reader:
    """A cursor over the mapped file; ``ValueError`` for whatever does not fit."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def read(self) -> GGUFFile:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self.at = 4
        version = self.scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3" + (" (big-endian?)" if version & 0xFFFF == 0 else ""))
        tensors, entries = self.scalar("Q"), self.scalar("Q")
        self.expect(entries, 13, "metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self.string()
            if key in metadata:
                raise ValueError(f"metadata key {key} is there twice")
            metadata[key] = self.value(self.scalar("I"), key)
        if metadata.get("split.count", 1) not in (0, 1):
            raise ValueError(f"it is one of {metadata['split.count']} parts; join them first")
        self.expect(tensors, 24, "tensors")
        return GGUFFile(self.path, metadata, self.table(tensors, metadata.get("general.alignment", 32)), self.size)

    def expect(self, count: int, least: int, what: str) -> None:
        """Refuse a count before anything is allocated for it: each item takes at least ``least`` bytes."""
        if count * least > self.size - self.at:
            raise ValueError(f"it is said to hold {count} {what}, more than its {self.size} bytes can")

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > min(_LARGEST_STRING, self.size - self.at):
            raise ValueError(f"a string at byte {self.at} is said to be {length} bytes long")
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8")

    def value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"metadata key {key} has the unknown type {kind}")
        item, count = self.scalar("I"), self.scalar("Q")
        if item == _STRING:
            self.expect(count, 8, f"strings in {key}")
            return self.strings(count)
        if item not in _SCALARS:
            raise ValueError(f"metadata key {key} is an array of the unsupported type {item}")
        self.expect(count, struct.calcsize(f"<{_SCALARS[item]}"), f"values in {key}")
        values = list(struct.unpack_from(f"<{count}{_SCALARS[item]}", self.data, self.at))
        self.at += struct.calcsize(f"<{count}{_SCALARS[item]}")
        return values

    def strings(self, count: int) -> list[str]:
        """A vocabulary: the one place where speed matters, so ``string`` is written out in the loop."""
        data, at, size, values = self.data, self.at, self.size, []
        length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = length_at(data, at)
            start, at = at + 8, at + 8 + length
            if at > size:
                raise ValueError(f"a string at byte {start} is said to be {length} bytes long")
            values.append(data[start:at].decode("utf-8"))
        self.at = at
        return values

    def table(self, count: int, alignment: Any) -> dict[str, GGUFTensor]:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r} is not a power of two")
        found: dict[str, GGUFTensor] = {}
        for _ in range(count):
            name, dimensions = self.string(), self.scalar("I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise ValueError(f"tensor {name} has {dimensions} dimensions")
            shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
            if name in found:
                raise ValueError(f"tensor {name} is there twice")
            if math.prod(shape) > 2**40 or 0 in shape:
                raise ValueError(f"tensor {name} is said to be {list(shape)}")
            found[name] = GGUFTensor(name, shape, self.scalar("I"), self.scalar("Q"))
        start = -(-self.at // alignment) * alignment
        return {
            name: GGUFTensor(name, tensor.shape, tensor.kind, self.placed(tensor, start, alignment))
            for name, tensor in found.items()
        }

    def placed(self, tensor: GGUFTensor, start: int, alignment: int) -> int:
        if tensor.offset % alignment or start + tensor.offset >= self.size:
            raise ValueError(f"tensor {tensor.name} is said to be at byte {start + tensor.offset} of {self.size}")
        return start + tensor.offset
