"""Rank 0's side of a model that several processes share: to a runner it is a decoder like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from wellhead.errors import InvalidConfig, RankDied
from wellhead.kernels.ops import KVPages, Ops, Packing
from wellhead.models.decoder import Decoder
from wellhead.models.spec import ModelSpec
from wellhead.parallel.group import Group, connect
from wellhead.parallel.messages import Forward, Head, Hello, Ready, Start
from wellhead.parallel.part import load_part
from wellhead.parallel.ranks import Ranks
from wellhead.parallel.shard import Shard
from wellhead.step import Tap


class Leader:
    """Before each forward pass and each use of the head it tells the other ranks to do their part of it.

    ``spec`` and ``ops`` are those of rank 0's part; rows and logits come out whole. ``free``: bytes that the fullest GPU
    of the other ranks has left, or ``None`` on CPUs. After a step that failed in the middle the ranks are gone, and every
    call raises ``RankDied``.
    """

    def __init__(self, ranks: Ranks, group: Group, decoder: Decoder, whole: ModelSpec, free: int | None) -> None:
        self.spec, self.ops, self.whole, self.free = decoder.spec, decoder.ops, whole, free
        self._ranks, self._group, self._decoder = ranks, group, decoder
        self._broken: RankDied | None = None

    def final_rows(self, ids: torch.Tensor, packing: Packing, kv: KVPages, tap: Tap, out: torch.Tensor | None) -> torch.Tensor:
        """As ``Decoder.final_rows``; the tap sees whole rows."""
        with self._together():
            self._ranks.tell(Forward.of(ids, packing, out))
            return self._decoder.final_rows(ids, packing, kv, tap, out)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Final rows ``[k, H]`` -> logits, float32 ``[k, vocab_size]``."""
        with self._together():
            self._ranks.tell(Head(len(rows)))
            self._group.share(rows.contiguous())
            parts = self._group.gather(self._decoder.logits(rows))
        size = parts[0].shape[1]  # the last parts are filled up beyond the vocabulary
        return torch.cat([part[:, : max(0, self.whole.vocab_size - rank * size)] for rank, part in enumerate(parts)], dim=1)

    @contextmanager
    def _together(self) -> Iterator[None]:
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except Exception as error:
            self._broken = self._ranks.lost(error)
            raise self._broken from error


def start_ranks(size: int, timeout: float, spec: ModelSpec, device: torch.device) -> Ranks:
    """Start the other ranks, which takes a while, for a model that can be cut into ``size`` parts.

    Raises ``InvalidConfig`` if it cannot, or if there are not as many GPUs.
    """
    Shard(0, size).spec(spec)
    if device.type == "cuda" and torch.cuda.device_count() < size:
        raise InvalidConfig(f"tp_size {size} needs as many GPUs, torch finds {torch.cuda.device_count()}", param="tp_size")
    return Ranks(size, timeout)


def lead(ranks: Ranks, path: Path, ops: Ops, positions: int) -> Leader:
    """Load the model over all ranks. ``ops``, ``positions``: as for a ``Decoder``.

    Raises what any of the ranks failed with: ``ModelError``, ``RankDied``, ...
    """
    store = ranks.folder / "store"
    gpu = ops.device.type == "cuda"

    def start(rank: int) -> Start:
        device = f"cuda:{rank}" if gpu else "cpu"
        return Start(
            rank, ranks.size, store, ranks.timeout, path, ops.dtype, device, ops.name == "native", positions, ranks.threads
        )

    ranks.wait_for(Hello)
    ranks.start(start)
    try:
        ranks.group = group = connect(store, 0, ranks.size, ops.device, ranks.timeout)
    except RankDied as error:
        raise ranks.lost(error) from error
    whole, decoder = load_part(path, ops, group, positions, ranks.tell)
    free = [ready.free for ready in ranks.wait_for(Ready)]
    return Leader(ranks, group, decoder, whole, min(free) if gpu else None)
