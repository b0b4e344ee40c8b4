"""The tap: the one place where a forward pass leaves rows.

A step keeps rows for two reasons: requests want some of them now, and with the ceiling at ``full`` every computed row is
kept beside the KV, so that a later prefix hit still has it. Rows are gathered on the device, rounded once to the model's
dtype, and leave it in one copy per step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from wellhead.types import DType

TORCH_DTYPE: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_storage(rows: torch.Tensor) -> NDArray[Any]:
    """A tensor as numpy holds its dtype (bfloat16 as uint16), on the host, sharing memory if it is there already."""
    host = rows.detach().cpu()
    if host.dtype is torch.bfloat16:
        return host.view(torch.uint16).numpy()
    return host.numpy()


class Transfer:
    """Rows of one step on their way to the host: one asynchronous copy of all of them, or none where they are there already.

    ``parts``: rows ``[k, H]`` of the model's dtype, under any names.
    """

    def __init__(self, parts: dict[Hashable, torch.Tensor]) -> None:
        self._parts = parts
        self._host: torch.Tensor | None = None
        self._done: torch.cuda.Event | None = None
        rows = list(parts.values())
        if rows and rows[0].device.type == "cuda":
            self._host = torch.empty((sum(map(len, rows)), rows[0].shape[1]), dtype=rows[0].dtype, pin_memory=True)
            self._host.copy_(torch.cat(rows), non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def arrays(self) -> dict[Hashable, NDArray[Any]]:
        """The rows under their names, as numpy holds their dtype; waits for the copy."""
        if self._host is None or self._done is None:
            return {name: to_storage(rows) for name, rows in self._parts.items()}
        self._done.synchronize()
        spans = torch.split(self._host, [len(rows) for rows in self._parts.values()])
        return {name: to_storage(span) for name, span in zip(self._parts, spans, strict=True)}


class RowStore:
    """Hidden rows beside the KV pages: ``[pages, captured layers, page_size, H]`` in the model's dtype."""

    def __init__(self, pages: int, page_size: int, layers: tuple[int, ...], hidden_size: int, like: torch.Tensor) -> None:
        self.layers = layers
        self.page_size = page_size
        self.data = torch.empty(pages, len(layers), page_size, hidden_size, dtype=like.dtype, device=like.device)

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows ``[T, H]`` of one layer into slots (page * page_size + offset, int64 ``[T]``)."""
        pages, offsets = slots // self.page_size, slots % self.page_size
        self.data[pages, self.layers.index(layer), offsets] = rows

    def read(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        pages, offsets = slots // self.page_size, slots % self.page_size
        return self.data[pages, self.layers.index(layer), offsets]

    def copy_page(self, source: int, target: int) -> None:
        self.data[target].copy_(self.data[source])

    @staticmethod
    def bytes_per_token(layers: tuple[int, ...], hidden_size: int, dtype: DType) -> int:
        return len(layers) * hidden_size * TORCH_DTYPE[dtype].itemsize


class StepTap:
    """Collects the rows of one step. ``index``: for each layer that requests want now, which of the rows that the forward
    pass will show are to be kept (int64 ``[k]``, k > 0).

    With a ``store``, the rows of all tokens also go into their slots, whoever asked. ``features``: layers whose rows, of
    all tokens, a draft model reads.
    """

    def __init__(
        self,
        index: Mapping[int, torch.Tensor],
        dtype: torch.dtype,
        store: RowStore | None,
        slots: torch.Tensor,
        features: frozenset[int] = frozenset(),
    ) -> None:
        self._index = index
        self._dtype = dtype
        self._store = store
        self._slots = slots
        self._read = features
        self.whole = whole_layers(store, features)
        self.layers = self.whole | frozenset(index)
        self.kept: dict[int, torch.Tensor] = {}
        self.features: dict[int, torch.Tensor] = {}

    def take(self, layer: int, rows: torch.Tensor) -> None:
        """Keep what is wanted of ``rows [T, H]``, float32 or the model's dtype; they may change afterwards."""
        if layer in self._read:
            self.features[layer] = rows.to(self._dtype, copy=True)
        if self._store is not None and layer in self._store.layers:
            rows = rows.to(self._dtype)
            self._store.write(layer, self._slots, rows)
        if layer in self._index:
            self.kept[layer] = rows.index_select(0, self._index[layer]).to(self._dtype)


def whole_layers(store: RowStore | None, features: frozenset[int]) -> frozenset[int]:
    """The layers of which a step needs the rows of all its tokens."""
    return features | frozenset(store.layers if store is not None else ())
