"""What rank 0 and the others tell each other over their pipes: plain data, numpy for arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from wellhead.errors import WellheadError
from wellhead.kernels.ops import Packing

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank is there and waits for ``Start``."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a rank needs to load its part of the model at ``path``.

    ``store``: where the ranks meet; ``timeout``: seconds that they wait for each other; ``native``: the kernels of rank 0.
    """

    rank: int
    size: int
    store: Path
    timeout: float
    path: Path
    dtype: torch.dtype
    device: str
    native: bool
    positions: int
    threads: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank has its weights. ``free``: bytes of its GPU's memory that are left, if it has one."""

    free: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank cannot go on; it ends after this."""

    error: WellheadError


@dataclass(frozen=True, slots=True)
class Pages:
    """Make room for pages, once."""

    pages: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a page."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Run packed tokens through the model; ``packing``: the tensors of a ``Packing``, in order. ``out``: as of ``final_rows``."""

    ids: Array
    packing: tuple[Array, ...]
    decode: bool
    out: Array | None

    @staticmethod
    def of(ids: torch.Tensor, packing: Packing, out: torch.Tensor | None) -> Forward:
        """From the tensors of rank 0."""
        p = packing
        arrays = (_array(x) for x in (p.positions, p.starts, p.kv_lens, p.page_table, p.slots))
        return Forward(_array(ids), tuple(arrays), p.decode, None if out is None else _array(out))

    def on(self, device: torch.device) -> tuple[torch.Tensor, Packing, torch.Tensor | None]:
        """Tokens, packing and ``out`` on a rank's device."""
        positions, starts, kv_lens, page_table, slots = (torch.from_numpy(x).to(device) for x in self.packing)
        packing = Packing(positions, starts, kv_lens, page_table, slots, self.decode)
        out = None if self.out is None else torch.from_numpy(self.out).to(device)
        return torch.from_numpy(self.ids).to(device), packing, out


@dataclass(frozen=True, slots=True)
class Head:
    """Take ``rows`` final rows of rank 0, and give it their logits over your part of the vocabulary."""

    rows: int


Message = Start | Pages | Copy | Forward | Head
Answer = Hello | Ready | Failed


def _array(x: torch.Tensor) -> Array:
    return x.cpu().numpy()
