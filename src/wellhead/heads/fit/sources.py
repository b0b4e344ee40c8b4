"""Rows to fit a head on, some at a time. Labels and groups are kept (a few bytes a row); rows and texts are not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellhead.errors import InputFileError, InvalidRequest
from wellhead.heads.head import MOST_LABELS
from wellhead.types import widen

Chunk = tuple[int, dict[int, NDArray[np.float32]]]


class Source(Protocol):
    """``codes`` int32 ``[n]``: which of ``labels`` a row has; ``groups`` int64 ``[n]``: rows of one group are never on both
    sides of a split."""

    layers: tuple[int, ...]
    width: int
    labels: tuple[str, ...]
    codes: NDArray[np.int32]
    groups: NDArray[np.int64]

    def chunks(self, layers: Sequence[int]) -> Iterator[Chunk]:
        """All rows of these layers in order, as often as wanted: the first one's number, and float32 ``[k, width]`` for each
        layer."""
        ...

    def texts(self) -> Iterator[tuple[int, list[str]]] | None:
        """All texts in order, if they are there."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the data are, for the head's provenance."""
        ...


def coded(labels: Sequence[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Labels in order (numbers by size, others as text), and each row's. ``InvalidRequest`` for one label or none, or for
    null."""
    if any(label is None for label in labels):
        raise InvalidRequest("a label is null: leave such rows out", param="labels")
    kinds = set(labels)
    if len(kinds) < 2 or len(kinds) > MOST_LABELS:
        raise InvalidRequest(f"{len(kinds)} different labels; a head needs 2 to {MOST_LABELS}", param="labels")
    numeric = all(isinstance(k, (int, float, np.number)) for k in kinds)
    order = {label: i for i, label in enumerate(sorted(kinds) if numeric else sorted(kinds, key=str))}
    names = tuple(str(label) for label in order)
    if len(set(names)) != len(names):
        raise InvalidRequest("two labels differ only in their type; write them alike", param="labels")
    return names, np.array([order[label] for label in labels], np.int32)


def grouped(groups: Sequence[Any] | None, count: int) -> NDArray[np.int64]:
    """Groups as numbers; without any, each row is one."""
    if groups is None:
        return np.arange(count, dtype=np.int64)
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(g, len(numbers)) for g in groups], np.int64)


class ArraySource:
    """Arrays ``[n, W]`` by layer, in memory or memory-mapped. ``texts`` serve the baselines and the report only."""

    def __init__(
        self,
        rows: Mapping[int, NDArray[Any]],
        labels: Sequence[Any],
        groups: Sequence[Any] | None = None,
        texts: Sequence[str] | None = None,
        facts: Mapping[str, Any] | None = None,
        chunk: int = 2048,
    ) -> None:
        shapes = {np.shape(r) for r in rows.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise InvalidRequest(f"rows must be arrays [n, W] of one shape, not {sorted(shapes)}", param="rows")
        count, self.width = next(iter(shapes))
        for name, given in (("labels", labels), ("groups", groups), ("texts", texts)):
            if given is not None and len(given) != count:
                raise InvalidRequest(f"{len(given)} {name} for {count} rows", param=name)
        self._rows, self._texts, self._chunk, self._facts = dict(rows), texts, chunk, dict(facts or {})
        self.layers = tuple(rows)
        self.labels, self.codes = coded(labels)
        self.groups = grouped(groups, count)

    def chunks(self, layers: Sequence[int]) -> Iterator[Chunk]:
        for at in range(0, len(self.codes), self._chunk):
            yield at, {layer: np.asarray(self._rows[layer][at : at + self._chunk], np.float32) for layer in layers}

    def texts(self) -> Iterator[tuple[int, list[str]]] | None:
        if self._texts is None:
            return None
        texts = self._texts
        return ((at, list(texts[at : at + self._chunk])) for at in range(0, len(texts), self._chunk))

    def facts(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.codes.tobytes())
        for layer in self.layers[:1]:
            for _, rows in self.chunks([layer]):
                digest.update(rows[layer].tobytes())
        return {"rows": len(self.codes), "sha256": digest.hexdigest(), **self._facts}


class ParquetSource:
    """Files as ``wellhead extract`` writes them: columns ``layer_N``, or ``vector`` (layer -1), one vector a row.

    ``paths``: files, or folders with ``data/*.parquet`` or ``*.parquet``. ``layers``: numbers, or ``None`` for all that are
    there.
    Reads one row group of the wanted columns at a time. Raises ``InputFileError``.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        label: str,
        layers: Sequence[int] | None = None,
        group: str | None = None,
        text: str | None = None,
        chunk: int = 2048,
    ) -> None:
        self._files = [file for path in paths for file in _files(Path(path))]
        self._text, self._chunk = text, chunk
        self._columns, self.width, self._dtypes = self._schema([label, *(c for c in (group, text) if c)])
        self.layers = tuple(sorted(self._columns)) if layers is None else tuple(layers)
        missing = [la for la in self.layers if la not in self._columns]
        if missing:
            raise InputFileError(f"{self._files[0]}: no column of layer {missing[0]}; there are layers {sorted(self._columns)}")
        self._label_column = label
        self.labels, self.codes = coded(self._column(label))
        groups = self._column(group) if group else None
        self.groups = grouped(groups, len(self.codes))

    def _schema(self, needed: list[str]) -> tuple[dict[int, str], int, dict[str, str]]:
        import pyarrow as pa

        columns: dict[int, str] = {}
        widths, dtypes = set(), {}
        for i, path in enumerate(self._files):
            schema = self._open(path).schema_arrow
            lacking = [name for name in needed if name not in schema.names]
            if lacking:
                raise InputFileError(f"{path}: no column {lacking[0]!r}; there are {', '.join(schema.names)}")
            found = {layer: name for name in schema.names if (layer := _layer(name)) is not None}
            if i and found != columns:
                raise InputFileError(f"{path}: its vector columns are not those of {self._files[0]}")
            columns = found
            for name in columns.values():
                kind = schema.field(name).type
                if not pa.types.is_fixed_size_list(kind):
                    said = "a head is fitted on one vector a row (not mode full)"
                    raise InputFileError(f"{path}: column {name!r} holds {kind}; {said}")
                widths.add(kind.list_size)
                dtypes[name] = ((schema.field(name).metadata or {}).get(b"dtype") or b"float32").decode()
        if len(widths) != 1:
            raise InputFileError(
                f"{self._files[0]}: {'no vector column' if not widths else f'vectors of widths {sorted(widths)}'}"
            )
        return columns, widths.pop(), dtypes

    def _open(self, path: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputFileError(f"{path}: {error}") from error

    def _batches(self, names: list[str]) -> Iterator[Any]:
        for path in self._files:
            with self._open(path) as file:
                # One row group a call: over several, the reader keeps those that it is done with.
                for group in range(file.metadata.num_row_groups):
                    yield from file.iter_batches(self._chunk, row_groups=[group], columns=names)

    def _column(self, name: str) -> list[Any]:
        return [value for batch in self._batches([name]) for value in batch.column(0).to_pylist()]

    def chunks(self, layers: Sequence[int]) -> Iterator[Chunk]:
        names = {layer: self._columns[layer] for layer in layers}
        at = 0
        for batch in self._batches(list(names.values())):
            yield at, {layer: self._rows(batch.column(name), name) for layer, name in names.items()}
            at += batch.num_rows

    def _rows(self, column: Any, name: str) -> NDArray[np.float32]:
        if column.null_count:
            raise InputFileError(f"column {name!r} holds null vectors")
        flat = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.width)
        return widen(flat, "bfloat16") if self._dtypes[name] == "bfloat16" else flat.astype(np.float32, copy=False)

    def texts(self) -> Iterator[tuple[int, list[str]]] | None:
        return self._all_texts(self._text) if self._text else None

    def _all_texts(self, name: str) -> Iterator[tuple[int, list[str]]]:
        at = 0
        for batch in self._batches([name]):
            yield at, [str(value) for value in batch.column(0).to_pylist()]
            at += batch.num_rows

    def facts(self) -> dict[str, Any]:
        """Of each file, name, size and a digest of its last bytes: Parquet's footer, with the statistics of every row group."""
        files = {}
        for path in self._files:
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, size - (1 << 20)))
                files[path.name] = [size, hashlib.sha256(file.read()).hexdigest()]
        return {"rows": len(self.codes), "files": files, "label_column": self._label_column}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted((path / "data").glob("*.parquet")) or sorted(p for p in path.glob("*.parquet") if p.name != "errors.parquet")
    if not found:
        raise InputFileError(f"{path}: no Parquet files in this folder")
    return found


def _layer(name: str) -> int | None:
    if name == "vector":
        return -1
    number = name.removeprefix("layer_")
    return int(number) if number != name and number.removeprefix("-").isdecimal() else None
