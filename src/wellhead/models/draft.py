"""A whole small model as a draft: reads tokens alone, shares nothing with its target but the vocabulary."""

from __future__ import annotations

import torch

from wellhead.kernels.ops import KVPages, Packing
from wellhead.models.decoder import Decoder


class StandaloneDraft:
    """A decoder, asked for its likeliest next token."""

    draws_on: tuple[int, ...] = ()

    def __init__(self, decoder: Decoder) -> None:
        self.spec = decoder.spec
        self.ops = decoder.ops
        self._decoder = decoder

    def fuse(self, features: list[torch.Tensor]) -> None:
        """There is nothing to read."""

    def forward(
        self, ids: torch.Tensor, features: torch.Tensor | None, packing: Packing, kv: KVPages, out: torch.Tensor
    ) -> torch.Tensor:
        """The final rows at ``out``, ``[k, H]``."""
        return self._decoder.final_rows(ids, packing, kv, NoTap(), out)

    def best(self, state: torch.Tensor) -> torch.Tensor:
        """int64 ``[k]``."""
        return self._decoder.logits(state).argmax(dim=-1)

    def as_features(self, state: torch.Tensor) -> torch.Tensor | None:
        """Nothing but tokens goes in."""
        return None


class NoTap:
    """Whoever captures nothing for anybody: drafts, and ranks behind the first."""

    layers: frozenset[int] = frozenset()

    def take(self, layer: int, rows: torch.Tensor) -> None:
        del layer, rows
