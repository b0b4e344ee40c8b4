"""Reads vectors back out of a part's files, by row number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wellhead.errors import OutputFileError
from wellhead.frontends.bulk.output.schema import no_vector
from wellhead.frontends.bulk.wish import Wish
from wellhead.types import STORAGE, DType


class StoredPart:
    """The files of a part, or a single file. ``rows``: int64 ``[n]``, the row numbers of its vectors. ``labelled``: it says
    of each which positions it is of."""

    def __init__(self, paths: list[Path], start: int, dtype: DType, wish: Wish) -> None:
        self._path, self._dtype, self._full = paths[0], dtype, wish.full
        self._kind = self._path.suffix
        self.labelled = wish.labelled and self._kind != ".npy"
        try:
            if self._kind == ".npy":
                self._npy: NDArray[Any] = np.load(self._path, mmap_mode="r" if self._path.stat().st_size > 128 else None)
                self.rows = np.arange(start, start + len(self._npy), dtype=np.int64)
            else:
                facts = paths[1] if self._kind == ".safetensors" else self._path
                self.rows = pq.read_table(facts, columns=["row"])["row"].to_numpy()
        except (OSError, ValueError) as error:  # pyarrow's errors are among these
            raise OutputFileError(f"{self._path}: {error}") from error

    def vector(self, row: int, column: str) -> NDArray[Any]:
        """One row's ``[H]`` or ``[rows, H]``, in the storage of the output's dtype."""
        at = int(np.searchsorted(self.rows, row))
        if self._kind == ".npy":
            return np.array(self._npy[at])
        return self._tensor(at, column) if self._kind == ".safetensors" else self._parquet(at, column)

    def _parquet(self, at: int, column: str) -> NDArray[Any]:
        value = self._value(at, column)
        width = (value.type.value_type if self._full else value.type).list_size
        if value.null_count:
            return no_vector(width, self._dtype)
        flat = value.flatten().flatten() if self._full else value.flatten()
        found: NDArray[Any] = flat.to_numpy(zero_copy_only=False).astype(STORAGE[self._dtype], copy=False)
        return found.reshape(-1, width) if self._full else found

    def _value(self, at: int, column: str) -> Any:
        """One row of a column, as an array of one."""
        file, group = pq.ParquetFile(self._path), 0
        while at >= file.metadata.row_group(group).num_rows:
            at -= file.metadata.row_group(group).num_rows
            group += 1
        return file.read_row_group(group, columns=[column])[column].combine_chunks().slice(at, 1)

    def label(self, row: int, name: str, positions: str) -> NDArray[np.int32]:
        """One row's positions, or the tokens at them. ``positions``: the name of the former."""
        at = int(np.searchsorted(self.rows, row))
        if self._kind != ".safetensors":
            flat = self._value(at, name).flatten()
            found: NDArray[np.int32] = flat.to_numpy(zero_copy_only=False).astype(np.int32)
            return found
        offsets = self._mapped(positions.replace("positions", "position_offsets"), np.dtype(np.int64))
        array = self._mapped(name, np.dtype(np.int64 if name == positions else np.int32))
        return array[offsets[at] : offsets[at + 1]].astype(np.int32)

    def _tensor(self, at: int, column: str) -> NDArray[Any]:
        array = self._mapped(column, STORAGE[self._dtype])
        if not self._full:
            return np.array(array[at])
        offsets = self._mapped(f"{column}.offsets", np.dtype(np.int64))
        return np.array(array[offsets[at] : offsets[at + 1]])

    def _mapped(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A tensor as a memory map; by hand, since numpy has no bfloat16 for the package to give."""
        with self._path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name]
        if entry["data_offsets"][0] == entry["data_offsets"][1]:
            return np.empty(entry["shape"], dtype)
        return np.memmap(self._path, dtype, "r", 8 + length + entry["data_offsets"][0], tuple(entry["shape"]))
