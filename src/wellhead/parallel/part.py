"""A rank's part of a model, from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wellhead.kernels.ops import Ops
from wellhead.models.decoder import Decoder
from wellhead.models.locate import load_spec
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import open_weights
from wellhead.parallel.group import Group
from wellhead.parallel.messages import Message
from wellhead.parallel.ops import ShardedOps
from wellhead.parallel.shard import Shard


def load_part(
    path: Path, ops: Ops, group: Group, positions: int, tell: Callable[[Message], None] | None = None
) -> tuple[ModelSpec, Decoder]:
    """The whole model's spec, and a decoder of this rank's part on ``ops``; ``tell``: see ``ShardedOps``.

    Errors: as ``open_weights``, and ``InvalidConfig`` for a model that cannot be cut so.
    """
    shard = Shard(group.rank, group.size)
    with open_weights(path, load_spec(path)) as weights:
        whole = weights.spec
        first, _ = shard.vocabulary(whole)
        decoder = Decoder(shard.spec(whole), ShardedOps(ops, group, first, tell), shard.read(weights), positions)
    return whole, decoder
