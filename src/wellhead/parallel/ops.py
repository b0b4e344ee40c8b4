"""``Ops`` of one rank: those of its machine, with sums over all ranks where products are partial."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wellhead.kernels.ops import KVPages, Ops, Packed
from wellhead.parallel.group import Group
from wellhead.parallel.messages import Copy, Message, Pages


class ShardedOps:
    """Works on weights that ``Shard.read`` has cut. What follows an input that is cut (``linear_add_``, ``norm_add_``) is
    summed over the ranks, and so are embeddings, of which each rank has those from id ``first`` on.

    ``tell``: on rank 0, sends what the others must do with their pages too.
    """

    def __init__(self, inner: Ops, group: Group, first: int, tell: Callable[[Message], None] | None = None) -> None:
        self._inner, self._group, self._first, self._tell = inner, group, first, tell
        self.name, self.batch_invariant = inner.name, inner.batch_invariant
        self.dtype, self.device = inner.dtype, inner.device
        self.prepare_thread, self.describe = inner.prepare_thread, inner.describe
        self.pack, self.pack_glu, self.unpack = inner.pack, inner.pack_glu, inner.unpack
        self.linear, self.glu, self.norm, self.peak = inner.linear, inner.glu, inner.norm, inner.peak
        self.rope_store, self.attend = inner.rope_store, inner.attend

    def linear_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: Packed, bias: torch.Tensor | None = None) -> None:
        """``residual += `` the sum over the ranks of ``linear(x)``."""
        residual.add_(self._group.sum(self._inner.linear(x, weight, bias)))

    def norm_add_(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """``residual += norm(sum over the ranks of x)``."""
        self._inner.norm_add_(residual, self._group.sum(x), weight, eps)

    def embed(self, ids: torch.Tensor, weight: Packed, scale: float) -> torch.Tensor:
        """Float32 ``[T, H]``: each row from the rank that has it."""
        own = ids - self._first
        mine = (own >= 0) & (own < weight.out_features)
        rows = self._inner.embed(torch.where(mine, own, 0), weight, scale)
        return self._group.sum(rows.masked_fill_(~mine[:, None], 0.0))

    def new_kv(self, *, pages: int, page_size: int, layers: int, kv_heads: int, head_dim: int) -> KVPages:
        """Room on every rank for its own heads."""
        if self._tell is not None:
            self._tell(Pages(pages, page_size))
        return self._inner.new_kv(pages=pages, page_size=page_size, layers=layers, kv_heads=kv_heads, head_dim=head_dim)

    def copy_page(self, kv: KVPages, source: int, target: int) -> None:
        """On every rank."""
        if self._tell is not None:
            self._tell(Copy(source, target))
        self._inner.copy_page(kv, source, target)
