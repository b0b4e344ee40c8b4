"""Which part of a model is whose: heads, MLP and vocabulary in equal parts, everything else whole on every rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from wellhead.errors import InvalidConfig
from wellhead.models.decoder import GetTensor
from wellhead.models.spec import ModelSpec
from wellhead.models.tensors import Share, all_tensors
from wellhead.models.weights import WeightSource


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``rank`` of ``size``.

    Products that are cut along their inputs (``o_proj``, ``down_proj``) give partial sums, to be added up over the ranks;
    their biases are rank 0's, and zero elsewhere. With fewer key-value heads than ranks, neighbours hold the same one.
    """

    rank: int
    size: int

    def spec(self, whole: ModelSpec) -> ModelSpec:
        """What this rank computes. Raises ``InvalidConfig``, with both numbers, where the model cannot be cut so."""
        size, keys = self.size, whole.kv_heads
        for count, what in ((whole.heads, "attention heads"), (whole.ffn_size, "channels of the MLP (intermediate_size)")):
            if count % size:
                raise InvalidConfig(f"tp_size {size} does not divide the model's {count} {what}", param="tp_size")
        if keys % size and size % keys:
            raise InvalidConfig(
                f"tp_size {size} and the model's {keys} key-value heads: neither divides the other", param="tp_size"
            )
        return replace(whole, heads=whole.heads // size, kv_heads=max(1, keys // size), ffn_size=whole.ffn_size // size)

    def vocabulary(self, whole: ModelSpec) -> tuple[int, int]:
        """First id of this rank's part, and how many rows the part has; the last ranks' may reach beyond the vocabulary."""
        rows = -(-whole.vocab_size // self.size)
        return self.rank * rows, rows

    def read(self, weights: WeightSource) -> GetTensor:
        """Tensors by Hugging Face's names, cut to this rank's part; no more than that is read where the format allows it."""
        whole = weights.spec
        mine = self.spec(whole)
        tensors = {tensor.name: tensor for tensor in all_tensors(whole)}

        def get(name: str) -> torch.Tensor:
            tensor = tensors[name]
            if tensor.share is None:
                return weights.get(name)
            if tensor.share == "vocabulary":
                first, rows = self.vocabulary(whole)
                part = weights.part(name, 0, min(first, whole.vocab_size), min(first + rows, whole.vocab_size))
                return F.pad(part, (0, 0, 0, rows - len(part))) if len(part) < rows else part
            if tensor.kind == "bias" and tensor.axis == 1:
                bias = weights.get(name)
                return torch.zeros_like(bias) if self.rank else bias
            first, width = self._cut(tensor.share, whole, mine)
            return weights.part(name, tensor.axis, first, first + width)

        return get

    def _cut(self, share: Share, whole: ModelSpec, mine: ModelSpec) -> tuple[int, int]:
        """First channel of this rank's part, and how many there are."""
        if share == "keys":
            return self.rank * whole.kv_heads // self.size * whole.head_dim, mine.kv_heads * whole.head_dim
        width = mine.heads * whole.head_dim if share == "heads" else mine.ffn_size
        return self.rank * width, width
